"""The page docs/troubleshooting.md: log messages, and findings of checks."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from agent.checks.finding import Level
from agent.diagnosis.rows import Again, sign_of, table
from tools.troubleshooting.bad_machine import findings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.diagnosis.rows import Row

MESSAGES = "scripts/tools/troubleshooting/messages.md"
_LONGEST, _BEFORE = 110, 20
_TOP = """# When something goes wrong

[scripts/troubleshooting](../scripts/troubleshooting) generates this page from the agent's tables;
a test fails if it is outdated.

1. The last line on stderr names the cause, the remedy, and the folder with all logs;
   `outcome.json` in the run folder has the same.
2. That line also names `failure-<time>.tar.gz`, one file with everything needed to find the cause,
   or to send to somebody: see below.
3. `pod-agent explain` summarizes the run in ten lines: how long each phase took, and what it
   waited for.
4. `pod-agent logs` prints any node's log through the head; after the run, from the run folder.
5. `pod-agent doctor` checks a machine before anything is started.
"""
_IN_A_BUNDLE = (
    (
        "`cause.txt`",
        "the first page: the cause, or the first error if it is unknown, and the lines before it",
    ),
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
            "hung), its events, and the facts of its machine"
        ),
    ),
    (
        "`<head>/ray/`",
        "GCS, raylet, dashboard and its agent, runtime_env agent, the job's driver",
    ),
    (
        "`<worker>/`",
        (
            "the ends of its logs, sent when it left; if it was lost, as the head requested them "
            "when the job was stopped"
        ),
    ),
    (
        "`<worker>/last-report.json`, `facts.json`",
        "its last report, and the facts of its machine",
    ),
)


def page(root: Path) -> str:
    """Return the whole page."""
    messages = (root / MESSAGES).read_text(encoding="utf-8")
    parts = (_TOP, messages, *_bundle(), *_logs(), *_checks())
    return "\n".join(parts) + "\n"


def _bundle() -> Iterator[str]:
    yield "## The failure bundle"
    yield ""
    yield _paragraph(
        "A failed run writes one bundle into the head's run folder; a worker that lost its head "
        "writes one into its own. A run that was stopped on request writes none. The last three "
        "bundles of a folder are kept."
    )
    yield ""
    yield "| file | contents |"
    yield "| --- | --- |"
    yield from (_row(*cells) for cells in _IN_A_BUNDLE)
    yield ""
    yield _paragraph(
        "It contains the end of each log (at most 2 MiB of the agent's and the job's, 512 KiB "
        "of others, 16 KiB of a worker's), at most 20 MiB in all. Known secrets are masked, "
        "control characters are removed, and only its owner may read it (0600). Writing it "
        "takes at most 2 s, less if AGENT_STOP_GRACE is below its default, after the workers "
        "received the verdict."
    )
    yield ""


def _logs() -> Iterator[str]:
    yield "## Known messages in logs"
    yield ""
    yield _paragraph(
        "When a run fails, the agent reads the ends of the logs of the job, the services and "
        "Ray, on all nodes, as errors: tracebacks with what they wrap, fatal lines of native "
        "programs, NCCL, kernel and driver, Slurm, shells and JSON, without the prefixes of "
        "launchers and loggers. The first error that nothing else led to is the cause: a lost "
        "connection, a watchdog or a dead actor is a consequence. An error that was retried, that "
        "training steps followed, or that stands in a text of the model does not count. A row "
        "of this table explains the error, and becomes the remedy of the outcome, with the line, "
        "the node and the rank. If no row does, the remedy quotes the line. Words in braces come "
        "from the line. Rows marked *live* are also reported while the job runs: as seen, once, "
        "and as a cause once the error ended a process or the steps; causes are also among the "
        "warnings of status and page. The others are seen once something ended, or the steps, "
        "and so is an error that no row explains; an exception is seen at once. "
        "`./scripts/causes` measures how often the cause is right. *Again*: whether another try "
        "may help; ? means that the log does not show it."
    )
    yield ""
    yield "| a line such as | cause | do | again |"
    yield "| --- | --- | --- | --- |"
    for row in _of_kind("cause"):
        live = " *live*" if row.is_live else ""
        again = {Again.YES: "yes", Again.NO: "no", Again.EITHER: "?"}[row.again]
        yield _row(f"`{_example(row)}`{live}", _plain(row.cause), _plain(row.what_to_do), again)
    yield ""
    yield _paragraph("These lines show only that another rank failed:")
    yield ""
    yield "| a line such as | means | do |"
    yield "| --- | --- | --- |"
    yield from (
        _row(f"`{_example(row)}`", row.cause, row.what_to_do) for row in _of_kind("symptom")
    )
    yield ""
    yield _paragraph(
        "These lines are harmless. They are never a cause, and are reported as noise while the "
        "job runs, once per attempt:"
    )
    yield ""
    yield "| line | meaning |"
    yield "| --- | --- |"
    yield from (_row(f"`{row.words[0].text}`", row.cause) for row in _of_kind("noise"))
    yield ""


def _checks() -> Iterator[str]:
    yield "## Findings of the checks"
    yield ""
    yield _paragraph(
        "The checks run in `doctor` and at each start. An error ends the run with 78 before "
        "anything is started; a warning is logged once. Examples, from a machine on which "
        "nearly every check fails:"
    )
    yield ""
    yield "| check | level | example | remedy |"
    yield "| --- | --- | --- | --- |"
    for one in findings():
        if one.level is not Level.OK:
            yield _row(one.check, one.level.value, one.what, one.remedy)


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 104, break_long_words=False, break_on_hyphens=False)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _of_kind(kind: str) -> Iterator[Row]:
    return (row for row in table().values() if row.kind == kind)


def _example(row: Row) -> str:
    """Return the matching part of a row's first example, with some context."""
    line, sign = (
        row.words[0].example.replace("`", "'"),
        sign_of(row.words[0].text).replace("`", "'"),
    )
    start = max(0, line.find(sign) - _BEFORE)
    text = line[start : start + _LONGEST].strip()
    return ("…" if start else "") + text + ("…" if start + _LONGEST < len(line) else "")


def _plain(text: str) -> str:
    """Unescape doubled braces, as formatting does."""
    return text.replace("{{", "{").replace("}}", "}").replace("!r}", "}")
