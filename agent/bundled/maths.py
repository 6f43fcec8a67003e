"""Find the answer in a model's text and compare it with the label by exact value.

Numbers are compared as fractions, anything else as text without case or spacing; expressions, lists
and sets that differ as text are left to math-verify. Expressions are not evaluated: `3+4` is not 7,
or a policy would learn to repeat the question.
A percent sign may be a value or a unit: `50%` equals `1/2` and `50`; `1/2` does not equal `50`.
A unit is dropped, not converted: `5 cm` equals `5`.
Any text (a million braces, 10 MB of digits, `1e999999999`) takes only milliseconds.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

LONGEST = 1_000  # longest answer that is parsed; longer ones are compared as text

# 10 ** 400 is beyond every float, and still cheap to calculate with.
_LARGEST_EXPONENT = 400


class Number(NamedTuple):
    """A number by value and as written: `50%` has the value 1/2 and is written as 50."""

    value: Fraction
    written: Fraction
    percent: bool


class Reading(NamedTuple):
    r"""A parsed answer: `x = \frac12` has the name x, the body 1/2 and that number."""

    name: str
    body: str
    number: Number | None


@lru_cache(maxsize=4096)
def read(text: str) -> Reading:
    """Parse an answer of at most LONGEST characters."""
    body = _normal(text)
    named = _NAMED.fullmatch(body)
    name, body = (named[1], named[2]) if named else ("", body)
    written = _ratio(body.removesuffix("%"))
    if written is None:
        return Reading(name, body, None)
    percent = body.endswith("%")
    return Reading(name, body, Number(written / 100 if percent else written, written, percent))


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
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SHORT_UNITS = "mm|cm|dm|km|mg|kg|ml|cl|ft|hr|lb|oz|mi"
_NO_UNITS = "and|cos|cot|exp|from|inf|infty|log|max|min|mod|not|over|plus|sin|sqrt|tan|times"
_UNIT = (
    rf"(?: ?(?:{_SHORT_UNITS})\b| (?!(?:{_NO_UNITS})\b)[a-z]{{3,}}\b)"
    rf"(?: (?!(?:{_NO_UNITS})\b)[a-z]{{2,}})*(?: ?\^ ?\{{?[23]\}}?)?"
)
_WITH_UNIT = re.compile(
    rf"([-+]?[0-9.][-+0-9.,/ *^{{}}()%]*?)"
    rf"(?: (?P<scale>{'|'.join(_SCALES)})\b(?:{_UNIT})?|{_UNIT})"
)
_PART = r" ?(?:\{ ?([-+]?[0-9][0-9.,]*) ?\}|([0-9]))"
_FRACTION = re.compile(rf"\\[dtc]?frac{_PART}{_PART}")
_REWRITES = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\(?:[,;:> ]|q?quad(?![a-z]))|~", " "),
        (r"\s+", " "),
        (r"\\[()\[\]!]", ""),
        (r"\\(?:left|right|displaystyle|textstyle|big+[lr]?)(?![a-z])", ""),
        (r"\{,\}", ","),
        (r"\\?[$£€¥]", ""),
        (r" ?(?:\\%|\bper ?cent\b)", "%"),
        (r" ?\^ ?\{? ?\\circ ?\}?(?: ?[cf](?![a-z]))?", ""),
        (r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname) ?\{([^{}]*)\}", r" \1 "),
        (r" ?(?:\\(?:cdot|times)(?![a-z])|\*) ?", "*"),
        (r"(?<=[0-9]) ?(?=\\[dtc]?frac)", " "),  # a mixed number: 1 1/2 is not 11/2
        (r" +", " "),
    )
)


def _normal(text: str) -> str:
    text = text[:LONGEST].casefold().translate(_SIGNS)
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    text = _FRACTION.sub(lambda m: f"{m[1] or m[2]}/{m[3] or m[4]}", text)
    if ", " in text:  # then a comma without a space is a thousands mark: (1,000, 2)
        text = re.sub(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", "", text)
    text = text.rstrip(" .,;:").lstrip(" :=")
    quantity = _WITH_UNIT.fullmatch(text)
    if quantity:  # `42 apples` and `5 cm^2` lose the unit; `5 million` becomes `5*10^6`
        scale = quantity["scale"]
        text = f"{quantity[1]}*10^{_SCALES[scale]}" if scale else quantity[1]
    text = re.sub(r"(?<![0-9]) | (?![0-9])", "", text)
    single = re.fullmatch(r"\(([^(),;]+)\)|\{([^{},;]+)\}", text)
    return (single[1] or single[2]) if single else text


_NAMED = re.compile(r"([a-z][a-z0-9_{}]{0,15}(?:\([a-z]\))?|\([a-z](?:,[a-z])+\))=([^=]+)")
_MANTISSA = r"(?:[0-9]{1,3}(?:[, ][0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_DECIMAL = re.compile(
    rf"([-+]?)(?:({_MANTISSA})(?:e([-+]?[0-9]+))?"
    rf"|(?:({_MANTISSA})\*)?10\^\{{?([-+]?[0-9]+)\}}?)"
)
_MIXED = re.compile(r"([-+]?)([0-9]+) ([0-9]+/[0-9]+)")


def _ratio(text: str) -> Fraction | None:
    mixed = _MIXED.fullmatch(text)
    if mixed:
        part = _ratio(mixed[3])
        return None if part is None else (int(mixed[2]) + part) * (-1 if mixed[1] == "-" else 1)
    above, slash, below = text.partition("/")
    numerator, denominator = _decimal(above), _decimal(below) if slash else Fraction(1)
    return numerator / denominator if numerator is not None and denominator else None


def _decimal(text: str) -> Fraction | None:
    match = _DECIMAL.fullmatch(text[1:-1] if text[:1] + text[-1:] == "()" else text)
    if not match:
        return None
    sign, plain, exponent, factor, power = match.groups()
    shift = exponent or power or "0"
    if len(shift) > 4 or abs(int(shift)) > _LARGEST_EXPONENT:
        return None
    digits = (plain or factor or "1").replace(",", "").replace(" ", "")
    value = Fraction(digits.rstrip(".")) * Fraction(10) ** int(shift)
    return -value if sign == "-" else value


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
_CALCULATION = re.compile(r"(?:[-+*/.,(){}^ 0-9%]|\\[dtc]?frac)*")


class Grade(NamedTuple):
    """The score of one answer, and the texts compared; None if nothing was found or given."""

    reward: float
    answer: str | None
    gold: str | None


def grade(query: str, prompt: str | None, label: str | float | None) -> Grade:
    """Score one whole text, as a framework sends it, against its label."""
    # without the prompt, whose numbers do not count
    answer = extract_answer(query.removeprefix(prompt or ""))
    gold = None if label is None else gold_answer(label)
    right = answer is not None and gold is not None and equal(answer, gold)
    return Grade(1.0 if right else 0.0, answer, gold)


def extract_answer(text: str) -> str | None:
    r"""Return what the text offers as its answer: last `\boxed`, last `<answer>`, last number."""
    return _boxed(text) or _tagged(text) or _last_number(text)


def gold_answer(label: str | float) -> str | None:
    """Return the answer that a label holds: marked as in a model's text, or the whole of it."""
    text = str(label)
    marked = _boxed(text) or _tagged(text)
    if marked is None and "####" in text:
        marked = text[text.rfind("####") + 4 :].strip()
    return marked or _after_the_words(text.strip()) or None


def equal(answer: str, gold: str) -> bool:
    """Return whether two answers have equal values, or equal texts if they are not numbers."""
    answer, gold = answer.strip(), gold.strip()
    if answer == gold:
        return bool(answer)
    if max(len(answer), len(gold)) > LONGEST:
        return False
    ours, theirs = read(answer), read(gold)
    if ours.name and theirs.name and ours.name != theirs.name:
        return False
    one, other = ours.number, theirs.number
    if one is not None and other is not None:
        is_unit = one.percent != other.percent and one.written == other.written
        return is_unit or one.value == other.value
    return bool(ours.body) and ours.body == theirs.body


def is_open(answer: str | None, gold: str | None) -> bool:
    """Return whether unequal answers may still be equal as expressions, for math-verify."""
    if not answer or not gold or max(len(answer), len(gold)) > _LONGEST_OPEN:
        return False
    ours, theirs = read(answer), read(gold)
    if theirs.number is not None and (ours.number or _CALCULATION.fullmatch(ours.body)):
        return False
    if _QUANTITY.fullmatch(ours.body) and _QUANTITY.fullmatch(theirs.body):
        # math-verify ignores words: it finds `3 pm` equal to `3 am`
        return sorted(ours.body) == sorted(theirs.body)
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
    return text if len(text) > LONGEST else _SAYS_SO.split(text)[-1].strip()


def _last_number(text: str) -> str | None:
    """Return the last number of a text, however long the text is."""
    at = max(text.rfind(digit) for digit in "0123456789")
    if at < 0:
        return None
    start = max(0, at - LONGEST)
    found = list(_LAST_NUMBER.finditer(text[start : at + 8]))
    if not found or (start and found[-1].start() == 0 and text[start - 1].isdigit()):
        return None  # digits longer than any number that we would read
    return found[-1][0].strip()
