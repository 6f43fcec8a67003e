"""The page: what logs say, what checks find, and what answers each known pain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks.finding import Level
from agent.decisions.causes.row import Again
from agent.decisions.causes.table import table
from troubles.bad_machine import findings
from troubles.pains import PAINS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.decisions.causes.row import Cause

MESSAGES = "scripts/troubles/messages.md"
_LONGEST, _BEFORE = 110, 20
_TOP = """# When something goes wrong

Written by [scripts/troubleshooting](../scripts/troubleshooting) from what the agent itself knows; a
test fails when it is stale.

1. The last line on stderr says what ended the run, what to do, and where all logs are;
   `outcome.json` in the run folder says the same.
2. `failure-<time>.tar.gz`, which that line names, is one file to look through or to hand on: see
   below.
3. `pod-agent explain` tells the run's story in ten lines: what took how long, what was waited for.
4. `pod-agent logs` shows any node's log through the head; after the run, from the run folder here.
5. `pod-agent doctor` looks at a machine before anything is started.
"""
_IN_A_BUNDLE = (
    (
        "`outcome.json`, `plan.txt`, `run.json`",
        "how it ended, what was planned, the attempts",
    ),
    (
        "`status.json`, `findings.json`",
        "the last status with its warnings, and what all nodes' checks found",
    ),
    (
        "`<head>/*.log`, `events.jsonl`, `facts.json`",
        (
            "its logs (agent, `ray start`, services, prepare steps, job, the stacks of a job that "
            "hung), all that happened, and what its machine is"
        ),
    ),
    (
        "`<head>/ray/`",
        "GCS, raylet, dashboard and its agent, runtime_env agent, the job's driver",
    ),
    (
        "`<worker>/`",
        (
            "the ends of its logs as it sent them with its goodbye; where it died without one, as "
            "the head had asked for them: when the worker complained, and when the job was stopped"
        ),
    ),
    (
        "`<worker>/last-heard.txt`, `facts.json`",
        "its last words and how it stands, what its machine is",
    ),
    ("`contents.txt`", "what each file is the end of, and what time or room did not allow"),
)


def page(root: Path) -> str:
    """Return the whole page."""
    messages = (root / MESSAGES).read_text(encoding="utf-8")
    parts = (_TOP, messages, *_bundle(), *_logs(), *_checks(), *_pains())
    return "\n".join(parts) + "\n"


def _bundle() -> Iterator[str]:
    yield "## What a failed run leaves"
    yield ""
    yield "A run that fails, on its own account or the job's, leaves one bundle in the head's"
    yield "folder of the run; a worker whose head is gone leaves one in its own. An end that was"
    yield "asked for leaves none."
    yield ""
    yield "| in it | is |"
    yield "| --- | --- |"
    yield from (_row(*cells) for cells in _IN_A_BUNDLE)
    yield ""
    yield "Of each log it has the end (2 MiB of the agent's and the job's, 512 KiB of others at"
    yield "most, 16 KiB of a worker's), of all together 20 MiB. Secrets that the agent knows of are"
    yield "masked, control characters taken out; only its owner may read it (0600). It takes 2 s at"
    yield "most, less where AGENT_STOP_GRACE is below its default, after the workers have heard the"
    yield "end. The last three of a folder are kept."
    yield ""


def _logs() -> Iterator[str]:
    yield "## What a log says"
    yield ""
    yield "When a run fails, the ends of the job's, the services' and Ray's logs are searched for"
    yield "these rows, on all nodes together: a cause counts before what it leads to (a service"
    yield "that does not answer, a killed process), the first line before the later ones, and an"
    yield "error that was tried again, or that steps followed, does not count. The row becomes the"
    yield "outcome's remedy, with the line, the node and the rank. Where no row matches, the"
    yield "remedy is the first error's own line. Words in braces come from the line. Rows marked"
    yield "*live* are reported while the job runs, once an attempt: in the head's log and among the"
    yield "warnings of its status and page. `./scripts/causes` measures how often that is right."
    yield "*Again*: whether another try may help; ? means that the log does not show it."
    yield ""
    yield "| a line such as | cause | do | again |"
    yield "| --- | --- | --- | --- |"
    for row in table().causes:
        live = " *live*" if row.is_live else ""
        again = {Again.YES: "yes", Again.NO: "no", Again.EITHER: "?"}[row.again]
        yield _row(f"`{_example(row)}`{live}", _plain(row.cause), _plain(row.what_to_do), again)
    yield ""
    yield "These lines show only that another rank has failed:"
    yield ""
    yield "| a line such as | means | do |"
    yield "| --- | --- | --- |"
    yield from (_row(f"`{_example(row)}`", row.cause, row.what_to_do) for row in table().symptoms)
    yield ""
    yield "These alarm and mean nothing; they are never taken for a cause, and reported as noise"
    yield "while the job runs, once an attempt:"
    yield ""
    yield "| matches | is |"
    yield "| --- | --- |"
    yield from (_row(f"`{row.words[0].text}`", row.cause) for row in table().noise)
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


def _example(row: Cause) -> str:
    """Return the part of a row's first example that matches, with some words around it."""
    line, sign = row.words[0].example.replace("`", "'"), row.words[0].sign.replace("`", "'")
    start = max(0, line.find(sign) - _BEFORE)
    text = line[start : start + _LONGEST].strip()
    return ("…" if start else "") + text + ("…" if start + _LONGEST < len(line) else "")


def _plain(text: str) -> str:
    """Return a text as it reads once it is filled in: doubled braces are single ones."""
    return text.replace("{{", "{").replace("}}", "}").replace("!r}", "}")
