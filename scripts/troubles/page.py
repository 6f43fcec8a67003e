"""The page: what logs say, what checks find, and what answers each known pain."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.checks import Level
from agent.decisions.remedies import CAUSES
from agent.decisions.remedies.noise import NOISE
from troubles.bad_machine import findings
from troubles.pains import PAINS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.decisions.remedies.row import Remedy

KNOWN_LINES = "tests/unit/known_lines.txt"
_LONGEST, _BEFORE = 110, 20
_TOP = """# When something goes wrong

Written by [scripts/troubleshooting](../scripts/troubleshooting) from what the agent itself knows; a
test fails when it is stale.

1. The last line on stderr says what ended the run and what to do; `outcome.json` in the run folder
   says the same.
2. `pod-agent explain` tells the run's story in ten lines: what took how long, what was waited for.
3. `pod-agent logs` shows any node's log through the head, while the run lives.
4. `pod-agent doctor` looks at a machine before anything is started.
"""


def page(root: Path) -> str:
    """Return the whole page."""
    known = dict(reversed([_parted(line) for line in _known_lines(root)]))
    parts = (_TOP, *_logs(known), *_checks(), *_pains())
    return "\n".join(parts) + "\n"


def _known_lines(root: Path) -> list[str]:
    lines = (root / KNOWN_LINES).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def _parted(line: str) -> tuple[str, str]:
    key, _, text = line.partition(" :: ")
    return key, text


def _logs(known: dict[str, str]) -> Iterator[str]:
    yield "## What a log says"
    yield ""
    yield "When a run fails, the ends of the job's, the services' and Ray's logs are looked"
    yield "through, and the first of these rows that fits becomes the outcome's remedy. Words in"
    yield "braces come from the line."
    yield ""
    yield "| a line such as | cause | do |"
    yield "| --- | --- | --- |"
    for row in CAUSES:
        yield _row(f"`{_telling(row, known)}`", _plain(row.cause), _plain(row.what_to_do))
    yield ""
    yield "These alarm and mean nothing; they are never taken for a cause:"
    yield ""
    yield "| matches | is |"
    yield "| --- | --- |"
    yield from (_row(f"`{_matched(row)}`", row.cause) for row in NOISE)
    yield ""


def _checks() -> Iterator[str]:
    yield "## What the checks find"
    yield ""
    yield "They run in `doctor` and at each start: what fails ends the run with 78 before anything"
    yield "is started, what is doubtful is warned of once. Their words where nearly all is wrong:"
    yield ""
    yield "| check | weight | says, for one | do |"
    yield "| --- | --- | --- | --- |"
    for one in findings():
        if one.level is not Level.OK:
            yield _row(one.check, one.level.value, one.what, one.remedy)
    yield ""


def _pains() -> Iterator[str]:
    answered = sum(bool(pain.answers) for pain in PAINS)
    whole = sum(bool(pain.answers) and not pain.is_open for pain in PAINS)
    yield "## What goes wrong in the field"
    yield ""
    yield "From the issue trackers of Ray, the frameworks and the platforms:"
    yield f"{answered} of {len(PAINS)} are avoided, checked or explained, {whole} of them with"
    yield "nothing left open."
    yield ""
    yield "| | symptom | answer | test | open |"
    yield "| --- | --- | --- | --- | --- |"
    for pain in PAINS:
        told = [f"{a.how}{f' ({a.what})' if a.what else ''}" for a in pain.answers]
        tests = dict.fromkeys(f"`{a.test.removeprefix('tests/')}`" for a in pain.answers)
        yield _row(
            str(pain.number),
            pain.symptom,
            ", ".join(told) or "none",
            "<br>".join(tests),
            pain.is_open,
        )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _telling(row: Remedy, known: dict[str, str]) -> str:
    """Return the part of a known line by which it is known, with some words around it."""
    line = known[row.key].replace("`", "'")
    match = re.search(row.words, line)
    start = max(0, match.start() - _BEFORE) if match is not None else 0
    text = line[start : start + _LONGEST].strip()
    return ("…" if start else "") + text + ("…" if start + _LONGEST < len(line) else "")


def _plain(text: str) -> str:
    """Return a text as it reads once it is filled in: doubled braces are single ones."""
    return text.replace("{{", "{").replace("}}", "}").replace("!r}", "}")


def _matched(row: Remedy) -> str:
    return row.words.replace(r"(?:event\+)?", "")
