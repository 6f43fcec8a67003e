"""Rows about sizes that do not divide by each other, both named by the check that failed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError

_DIVISIBLE = re.compile(r"\b(?:divisible by|divisor of|multiple of)\b")
_ASSERTED = re.compile(
    r"assert \(?(?P<what>[\w.\[\]\"'() *-]{1,80}?) % \(?(?P<by>[\w.\[\]\"'() *-]{1,80}?)\)? == 0"
)
_VERBS = re.compile(
    r"(?:[\s,]{1,4}(?:must|should|shall|is|are|was|were|be|has|have|needs?|to|not|evenly|exactly|a|an|the"
    r"|integer|can|cannot)){1,9}\s{0,4}$"
)
_BREAKS = re.compile(r"[.:;!?]\s|,\s|\n")
_BEHIND = re.compile(r"[.:;!?](?:\s|$)|,\s|\n|\s\(?(?:but|got|for|when|if|because|in order)\b")
_LONGEST = 60  # characters of a name
_OF_BATCHES = re.compile(r"(?i)batch|(?:rollout|prompt|sample|completion|generation)s?(?:\b|_)")
_OF_MODELS = re.compile(
    r"(?i)(?:head|layer|expert)s?(?:\b|_)(?!.*parallel)|hidden_?\s?size|vocab|intermediate_size"
)
_OF_RANKS = re.compile(r"(?i)world_?\s?size|ranks?\b|gpus?\b|devices?\b")
"""Whose size a name is of."""


def sizes_that_do_not_divide(error: ParsedError) -> Cause | None:
    """A check of two sizes: which one does not divide by which."""
    if error.name not in {"ValueError", "AssertionError", "RuntimeError", "ValidationError"}:
        return None
    pair = _named(error.message) or _asserted(error)
    if pair is None:
        return None
    what, by = pair
    return Cause("sizes that do not divide", f"{what} does not divide by {by}", _remedy(what, by))


def _remedy(what: str, by: str) -> str:
    """Return what to change, by whose sizes the two are."""
    if _OF_BATCHES.search(what) is not None:
        return "Choose sizes that divide: batch × samples by the GPUs, mini-batch by the ranks"
    if _OF_MODELS.search(what) is not None and _OF_MODELS.search(by) is not None:
        return "Both are of the model's own configuration: correct it, or take another model"
    if _OF_MODELS.search(what) is not None:
        return "The model sets the first: choose a size that divides it (also key-value heads)"
    if _OF_RANKS.search(what) is not None:
        return "Change the number of GPUs, or the parallel sizes, whose product has to divide it"
    return "Change one of the two, in the job's configuration or by the number of GPUs"


def _named(message: str) -> tuple[str, str] | None:
    """Return what does not divide by what, by the words of a message."""
    for line in message.split("\n")[:4]:
        found = _DIVISIBLE.search(line)
        if found is None or found[0] == "divisor of":
            continue
        before = _VERBS.sub("", line[: found.start()])
        what = _BREAKS.split(before)[-1].strip(" \"'`")
        by = _BEHIND.split(line[found.end() :].removesuffix("]"))[0].strip(" \"'`.")
        by = by.removeprefix("the ")
        has_words = any(letter.isalpha() for letter in what)
        if has_words and _is_name(what) and _is_name(by):
            return what, by
    return None


def _asserted(error: ParsedError) -> tuple[str, str] | None:
    """Return the same of an assertion without a message, by its code."""
    if error.name != "AssertionError" or error.message.strip() or not error.frames:
        return None
    found = _ASSERTED.match(error.frames[-1].code)
    return None if found is None else (found["what"].strip(), found["by"].strip())


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _LONGEST and any(letter.isalnum() for letter in text)
