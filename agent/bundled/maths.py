"""Find the answer in a model's text and compare it with the label by exact value.

Numbers are compared as fractions, anything else as text without case or spacing. Expressions,
lists, sets, percent signs, short units and names such as `x = 5` are left to math-verify; what it
misses is read here: `1 1/2`, `1e3`, `18 dollars`. Expressions are not evaluated: `3+4` is not 7, or
a policy would learn to repeat the question. A unit is dropped, not converted.
Any text (a million braces, 10 MB of digits, `1e999999999`) takes only milliseconds.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

LONGEST = 1_000  # longest answer that is parsed; longer ones are compared as text


class Reading(NamedTuple):
    """A parsed answer: its text without case and spacing, and its number if it is one."""

    body: str
    number: Fraction | None


_SIGNS = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{FRACTION SLASH}": "/",
        "\N{MULTIPLICATION SIGN}": r"\times ",
        "\N{INFINITY}": r"\infty ",
        "\N{DEGREE SIGN}": r"^\circ",
    }
)
"""Signs that math-verify does not know."""
_NO_UNITS = (
    "and|cos|cot|exp|from|inf|infty|log|max|min|mod|not|over|plus|sin|sqrt|tan|times"
    "|thousand|million|billion|trillion"
)
_UNIT_WORD = rf"(?!(?:{_NO_UNITS})\b)[a-z]"
_WITH_UNIT = re.compile(rf"([-+0-9.,/ ]+?) {_UNIT_WORD}{{3,}}(?: {_UNIT_WORD}{{2,}})*")
_PART = r" ?(?:\{ ?([-+]?[0-9][0-9.,]*) ?\}|([0-9]))"
_FRACTION = re.compile(rf"\\[dtc]?frac{_PART}{_PART}")
_REWRITES = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\(?:[,;:> ]|q?quad(?![a-z]))|~", " "),
        (r"\\[()\[\]!]|\\?\$", ""),
        (r"\{,\}", ","),
        (r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname) ?\{([^{}]*)\}", r" \1 "),
        (r"(?<=[0-9]) ?(?:\\cdot|\\times|\*) ?10\^\{?([-+]?[0-9]{1,2})\}?", r"e\1"),
        (r"^10\^\{?([-+]?[0-9]{1,2})\}?$", r"1e\1"),
        (r"(?<=[0-9]) ?(?=\\[dtc]?frac)", " "),  # a mixed number: 1 1/2 is not 11/2
        (r"\s+", " "),
    )
)
_MANTISSA = r"(?:[0-9]{1,3}(?:[, ][0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_DECIMAL = re.compile(rf"[-+]?(?:{_MANTISSA})(?:e[-+]?[0-9]{{1,2}})?")
_MIXED = re.compile(r"([-+]?[0-9]+) ([0-9]+/[0-9]+)")


@lru_cache(maxsize=4096)
def read(text: str) -> Reading:
    """Parse an answer of at most LONGEST characters."""
    text = text[:LONGEST].casefold()
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    text = _FRACTION.sub(lambda m: f"{m[1] or m[2]}/{m[3] or m[4]}", text)
    text = text.rstrip(" .,;:").lstrip(" :=")
    quantity = _WITH_UNIT.fullmatch(text)
    if quantity:
        text = quantity[1]
    text = re.sub(r"(?<![0-9]) | (?![0-9])", "", text)
    return Reading(text, _ratio(text))


def _ratio(text: str) -> Fraction | None:
    mixed = _MIXED.fullmatch(text)
    if mixed is None:
        return _quotient(text)
    whole = Fraction(mixed[1])
    part = _quotient(mixed[2])
    if part is None:
        return None
    return whole - part if mixed[1].startswith("-") else whole + part


def _quotient(text: str) -> Fraction | None:
    above, slash, below = text.partition("/")
    numerator = _decimal(above)
    denominator = _decimal(below) if slash else Fraction(1)
    if numerator is None or not denominator:
        return None
    return numerator / denominator


def _decimal(text: str) -> Fraction | None:
    if _DECIMAL.fullmatch(text) is None:
        return None
    return Fraction(text.replace(",", "").replace(" ", ""))


_BOXES_TRIED = 16
_LONGEST_OPEN = 300

_DECIMAL_TEXT = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
_FRACTION_TEXT = rf"\\[dtc]?frac\s*\{{\s*-?{_DECIMAL_TEXT}\s*\}}\s*\{{\s*-?{_DECIMAL_TEXT}\s*\}}"
_LAST_NUMBER = re.compile(
    r"(?:(?<![\w)\]}])[-+\N{MINUS SIGN}])?"
    rf"(?:(?:[0-9]+\s*)?{_FRACTION_TEXT}|\\[dtc]?frac\s*[0-9]\s*[0-9]"
    rf"|{_DECIMAL_TEXT}\s?/\s?{_DECIMAL_TEXT}"
    rf"|{_DECIMAL_TEXT}(?:[eE][-+]?[0-9]+|\s*\\times\s*10\^\{{?-?[0-9]+\}}?)?)"
    r"(?:\s?\\?%)?"
)
_SAYS_SO = re.compile(r"\banswer\s*(?:is\s*:?|:|=)\s*", re.IGNORECASE)
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_WORDS_OF_PROSE = 3
_QUANTITY = re.compile(r"[-+0-9.,:/]+[a-z]{2,}[a-z0-9]*")
_CALCULATION = re.compile(r"(?:[-+*/.,(){}^ 0-9]|\\(?:[dtc]?frac|cdot|times))*")


class Grade(NamedTuple):
    """The score of one answer, and the texts compared; None if nothing was found or given."""

    reward: float
    answer: str | None
    gold: str | None
    is_open: bool  # whether math-verify may find them equal


def grade(query: str, prompt: str | None, label: str | float | None) -> Grade:
    """Score one whole text, as a framework sends it, against its label."""
    # without the prompt, whose numbers do not count
    answer = extract_answer(query.removeprefix(prompt or "").translate(_SIGNS))
    gold = None if label is None else gold_answer(str(label).translate(_SIGNS))
    if answer is None or gold is None:
        return Grade(0.0, answer, gold, is_open=False)
    if equal(answer, gold):
        return Grade(1.0, answer, gold, is_open=False)
    return Grade(0.0, answer, gold, is_open(answer, gold))


def extract_answer(text: str) -> str | None:
    r"""Return what the text offers as its answer: last `\boxed`, last `<answer>`, last number."""
    return _boxed(text) or _tagged(text) or _last_number(text)


def gold_answer(text: str) -> str | None:
    """Return the answer that a label holds: marked as in a model's text, or the whole of it."""
    marked = _boxed(text) or _tagged(text)
    if marked is None and "####" in text:
        marked = text[text.rfind("####") + 4 :].strip()
    return marked or _after_the_words(text.strip()) or None


def equal(answer: str, gold: str) -> bool:
    """Return whether two answers have equal values, or equal texts if they are not numbers."""
    answer = answer.strip()
    gold = gold.strip()
    if answer == gold:
        return bool(answer)
    if max(len(answer), len(gold)) > LONGEST:
        return False
    ours = read(answer)
    theirs = read(gold)
    if ours.number is not None and theirs.number is not None:
        return ours.number == theirs.number
    return bool(ours.body) and ours.body == theirs.body


def is_open(answer: str, gold: str) -> bool:
    """Return whether unequal answers may still be equal as expressions, for math-verify."""
    if max(len(answer), len(gold)) > _LONGEST_OPEN:
        return False
    ours = read(answer)
    theirs = read(gold)
    if theirs.number is not None and (ours.number or _CALCULATION.fullmatch(ours.body)):
        return False
    if _QUANTITY.fullmatch(ours.body) and _QUANTITY.fullmatch(theirs.body):
        return False  # math-verify ignores words: it finds `3 pm` equal to `3 am`
    return not (ours.body.isalpha() and theirs.body.isalpha())


def _boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{…}` that closes and is not empty."""
    end = len(text)
    for _ in range(_BOXES_TRIED):
        end = text.rfind("\\boxed", 0, end)
        if end < 0:
            return None
        # The slice also bounds how far an unclosed brace is followed.
        content = _braced(text[end + 6 : end + 6 + LONGEST].lstrip())
        if content:
            return content
    return None


def _braced(text: str) -> str | None:
    r"""Return the content of the braces at the start of a text, or the bare token of `\boxed 7`."""
    if not text.startswith("{"):
        token = re.match(r"[-+]?[0-9][0-9.,/]*", text)
        return token[0].rstrip(".,") if token else None
    depth = 0
    for brace in re.finditer(r"\\[{}\\]|[{}]", text):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[1 : brace.start()].strip()
    return None


def _tagged(text: str) -> str | None:
    """Return the content of the last `<answer>…</answer>`, or its last number if that is prose."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    if start < 0:
        return None
    content = _after_the_words(text[start + 8 : end].strip())
    if len(content) > LONGEST:
        return _last_number(content)
    if len(_WORD.findall(content)) >= _WORDS_OF_PROSE:
        return _last_number(content) or content
    return content or None


def _after_the_words(text: str) -> str:
    """Remove the introduction of an answer: `The answer is 42.` becomes `42`."""
    if len(text) > LONGEST:
        return text
    return _SAYS_SO.split(text)[-1].strip()


def _last_number(text: str) -> str | None:
    """Return the last number of a text, however long the text is."""
    at = max(text.rfind(digit) for digit in "0123456789")
    if at < 0:
        return None
    start = max(0, at - LONGEST)
    numbers = list(_LAST_NUMBER.finditer(text[start : at + 8]))
    if not numbers:
        return None
    last = numbers[-1]
    if start and last.start() == 0 and text[start - 1].isdigit():
        return None  # digits longer than any number that we would read
    return last[0].strip()
