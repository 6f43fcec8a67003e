"""Rows about values that a configuration refuses: the form of the error shows which ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError

_LONGEST = 70  # characters of a message that a sentence repeats
_SETTINGS = r"(?:Config|Configuration|Args|Arguments|Settings|Options|Params)"
_TITLE = re.compile(rf"\d{{1,4}} validation errors? for (?P<owner>\w{{0,60}}{_SETTINGS})\b")
_FIELD = re.compile(r"[A-Za-z_][\w.-]{0,80}$")
_TYPED = re.compile(r"\s*(?P<message>.{1,300}?) \[type=(?P<type>\w{1,60})")
_CHECKS = re.compile(
    r"__post_init__|_{0,2}(?:validate|verify|check)_?\w{0,40}(?:config|args|arguments|options)\w{0,20}"
    r"|validate(?:_args)?|_verify_args|_validate_args"
)
_FILES = re.compile(r"(?:config|arguments|args|options)\w{0,20}\.py$|/(?:config|configs|training)/")
_OTHER_CAUSES = re.compile(
    r"(?i)install|version|transformers|driver|\bcuda\b|\bgpus?\b|capability|\bhub\b|connect"
    r"|not found|no such file|does not exist|architecture|recogni[sz]e|divisib|memory"
)
"""Words of messages about the machine or about packages, which a check only passes on."""


def refused_field(error: ParsedError) -> Cause | None:
    """Pydantic refuses a field of a configuration: its title, the field and why stand in lines."""
    if error.name != "ValidationError":
        return None
    title = _TITLE.match(error.message)
    lines = error.message.split("\n")[1:4]
    if title is None or not lines:
        return None
    field = lines[0].strip() if _FIELD.match(lines[0]) else ""
    typed = next((match for line in lines if (match := _TYPED.match(line))), None)
    if typed is None or _OTHER_CAUSES.search(typed["message"]):
        return None
    owner = title["owner"]
    if typed["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        return _refused(f"{owner} has no key {field} in this version")
    if typed["type"] == "missing":
        return _refused(f"{owner} lacks its key {field}")
    message = typed["message"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return _refused(f"{owner} refuses {field or 'a value'}: {_short(message)}")


def refused_by_a_check(error: ParsedError) -> Cause | None:
    """A check of a framework's configuration refuses a value: the frame shows that it is one."""
    if error.name not in {"ValueError", "AssertionError"} or not error.frames:
        return None
    frame = error.frames[-1]
    if _CHECKS.fullmatch(frame.function.rpartition(".")[2]) is None:
        return None
    message = error.message.partition("\n")[0].strip()
    is_of_settings = _FILES.search(frame.file) is not None
    if len(message) < 12 or not is_of_settings or _OTHER_CAUSES.search(message):
        return None
    return _refused(f"the configuration does not pass {frame.function}: {_short(message)}")


def _refused(sentence: str) -> Cause:
    return Cause(
        "configuration refused",
        sentence,
        "Correct the value in the job's configuration or on its command line",
    )


def _short(message: str) -> str:
    text = message.rstrip(". ")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(' ')[0]} …"
