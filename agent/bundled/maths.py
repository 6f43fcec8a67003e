r"""Find the answer in a model's text and tell, by exact value, whether it is the right one.

Answers are read, never computed: `3+4` is no 7, or a policy would learn to repeat the question.
A per cent sign may be a value or a unit: `50%` equals `1/2` and `50`; `1/2` does not equal `50`.
Brackets hold their order, `(1,2)` is not `(2,1)`; sets and bare lists have none, `1, 2` is `2, 1`.
A unit is dropped, not converted: `5 cm` equals `5`. Text is compared without case or spacing.
Whatever a policy may write (a million braces, 10 MB of digits, `1e999999999`) costs milliseconds.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from agent.bundled.notation import LONGEST, read

if TYPE_CHECKING:
    from agent.bundled.notation import Number

_BOXES_TRIED = 16
_MOST_ELEMENTS = 64
_DEEPEST_LIST = 4
_LONGEST_FOR_A_SECOND_LOOK = 300

_DECIMAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
_FRACTION = rf"\\[dtc]?frac\s*\{{\s*-?{_DECIMAL}\s*\}}\s*\{{\s*-?{_DECIMAL}\s*\}}"
_LAST_NUMBER = re.compile(
    r"(?:(?<![\w)\]}])[-+\N{MINUS SIGN}])?"
    rf"(?:(?:[0-9]+\s*)?{_FRACTION}|\\[dtc]?frac\s*[0-9]\s*[0-9]"
    rf"|{_DECIMAL}\s?/\s?{_DECIMAL}"
    rf"|{_DECIMAL}(?:[eE][-+]?[0-9]+|\s*\\times\s*10\^\{{?-?[0-9]+\}}?)?)"
    r"(?:\s?\\?%)?"
)
_SAYS_SO = re.compile(r"\banswer\s*(?:is\s*:?|:|=)\s*", re.IGNORECASE)
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_WORDS_OF_PROSE = 3
_CALCULATION = re.compile(r"[-+*/.,() 0-9%]*")


class Grade(NamedTuple):
    """What one answer earned, and what was compared; None stands for nothing found or given."""

    reward: float
    answer: str | None
    gold: str | None


def grade(query: str, prompt: str | None, label: str | float | None) -> Grade:
    """Score one whole text, as a framework sends it, against its label."""
    answer = extract_answer(answer_part(query, prompt))
    gold = None if label is None else gold_answer(label)
    right = answer is not None and gold is not None and equal(answer, gold)
    return Grade(1.0 if right else 0.0, answer, gold)


def answer_part(query: str, prompt: str | None) -> str:
    """Cut the prompt off a text that begins with it, so that its numbers are not taken for ours."""
    return query[len(prompt) :] if prompt and query.startswith(prompt) else query


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
    """Tell whether two answers agree in value, or letter by letter where they have none."""
    return _equal(answer, gold, _DEEPEST_LIST)


def worth_a_second_look(answer: str | None, gold: str | None) -> bool:
    """Tell whether a symbolic comparison could still find two unequal answers equal."""
    if not answer or not gold or max(len(answer), len(gold)) > _LONGEST_FOR_A_SECOND_LOOK:
        return False
    ours, theirs = read(answer), read(gold)
    if _CALCULATION.fullmatch(ours.body) and theirs.number is not None:
        return False
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
    r"""Return what stands in the braces that open a text, or the bare token of `\boxed 7`."""
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
    content = text[start + 8 : end].strip()
    if len(content) > LONGEST:
        return _last_number(content)
    content = _after_the_words(content)
    if len(_WORD.findall(content)) >= _WORDS_OF_PROSE:
        return _last_number(content) or content
    return content or None


def _after_the_words(text: str) -> str:
    """Cut what leads up to an answer: `The answer is 42.` holds `42`."""
    found = list(_SAYS_SO.finditer(text)) if len(text) <= LONGEST else []
    return text[found[-1].end() :].strip() if found else text


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


def _equal(answer: str, gold: str, depth: int) -> bool:
    answer, gold = answer.strip(), gold.strip()
    if answer == gold:
        return bool(answer)
    if max(len(answer), len(gold)) > LONGEST:
        return False
    ours, theirs = read(answer), read(gold)
    if ours.name and theirs.name and ours.name != theirs.name:
        return False
    if ours.number is not None and theirs.number is not None:
        return _same_number(ours.number, theirs.number)
    if ours.body == theirs.body:
        return bool(ours.body)
    return depth > 0 and _equal_lists(ours.body, theirs.body, depth - 1)


def _same_number(ours: Number, theirs: Number) -> bool:
    if ours.value == theirs.value:
        return True
    return ours.percent != theirs.percent and ours.written == theirs.written


def _equal_lists(ours: str, theirs: str, depth: int) -> bool:
    mine, other = _elements(ours), _elements(theirs)
    if mine is None or other is None or len(mine[1]) != len(other[1]):
        return False
    brackets = {mine[0], other[0]} - {""}
    if len(brackets) > 1:
        return False
    if brackets <= {"{}"}:
        left = list(other[1])
        for element in mine[1]:
            match = next((one for one in left if _equal(element, one, depth)), None)
            if match is None:
                return False
            left.remove(match)
        return True
    return all(_equal(*pair, depth) for pair in zip(mine[1], other[1], strict=True))


@lru_cache(maxsize=1024)
def _elements(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Split a list at its outer commas; its brackets are '' where it has none."""
    brackets = text[:1] + text[-1:]
    if brackets in ("()", "[]", "(]", "[)", "{}"):
        parts = _split(text[1:-1])
        if parts and (len(parts) > 1 or brackets == "{}"):
            return brackets, parts
    parts = _split(text)
    return ("", parts) if parts and len(parts) > 1 else None


def _split(text: str) -> tuple[str, ...] | None:
    """Split at the commas outside all brackets; None for what does not close or is no list."""
    parts, depth, start = [], 0, 0
    for mark in re.finditer(r"[()\[\]{},;]", text):
        if mark[0] in ",;":
            if depth == 0:
                parts.append(text[start : mark.start()])
                start = mark.end()
        else:
            depth += 1 if mark[0] in "([{" else -1
        if depth < 0:  # `1,2),(3,4`: the brackets around it were not one pair
            return None
    parts.append(text[start:])
    return tuple(parts) if depth == 0 and len(parts) <= _MOST_ELEMENTS else None
