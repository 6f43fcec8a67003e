"""Play a held-out case as a run, and grade what its user reads.

The logs of a case go the way of a run's: each node reads its output line by line (what a user
reads while the job runs), workers report known lines to the head, and the head explains the end.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter, defaultdict
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

import anyio
from msgspec import convert

from agent.base.ends import Kind, Outcome
from agent.base.text import parse_toml, without_controls
from agent.base.value import Value
from agent.diagnosis.find_cause import Diagnosis, diagnose_logs
from agent.diagnosis.searched_log import Log
from agent.plan.plan import JOB_LOG
from agent.record.job_lines import JobLines, KnownLines
from agent.record.run_folder import RunFolder
from agent.run.diagnose import Elsewhere, explain_end
from agent.settings.redact import redactor_for
from support.node_runs import made_run
from support.worlds import plan_of
from tools.causes.logs import Text, first_time, written

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HEAD = "head"
NODES = {"10.8.0.11": HEAD, **{f"10.8.0.{11 + n}": f"worker-{n}" for n in range(1, 8)}}
"""The nodes' names by their addresses, in all cases."""

UNKNOWN = re.compile(r"no known cause|unknown to pod-agent|shows a symptom", re.IGNORECASE)
_SHORTEST_QUOTE = 8
_NO_LIMIT = 300.0  # seconds
_CHUNK = 4096
_BETWEEN = 10.0  # seconds between the outputs of two nodes


class Grade(Enum):
    """The grade of an answer: best first."""

    RIGHT = "right"  # names the cause
    LINE = "line"  # names none, and quotes the true line
    SILENT = "silent"  # nothing, or another line as unknown
    WRONG = "wrong"  # names a false cause


class Case(Value):
    """A run with its true cause."""

    id: str
    thread: str
    kind: str
    cause: str  # in plain words, for people
    logs: dict[str, str]  # what the job wrote, by node
    accept: tuple[str, ...] = ()  # expressions for the named cause and its advice: any of them
    reject: tuple[str, ...] = ()  # none of them
    lines: tuple[str, ...] = ()  # parts of the true lines
    exit: int = 1
    trap: bool = False  # the scary lines are not the cause: none may be named
    began: str = ""  # when the attempt began, if that matters, as in `2026-11-21T02:00:00`

    def texts(self) -> dict[str, Text]:
        """Return each node's log."""
        return {node: written(source, self.id) for node, source in self.logs.items()}

    def is_true_on(self, text: Text) -> bool:
        """Return whether a true line is in a log."""
        return any(line in text.text for line in self.lines)


class Answer(NamedTuple):
    """What a user reads of a run."""

    end: str  # the outcome's remedy
    live: tuple[str, ...]  # sentences that named a cause while the job ran


def load_runs(folder: Path) -> Iterator[Case]:
    """Yield the cases of a folder's files."""
    for path in sorted(folder.glob("*.toml")):
        for case in parse_toml(path.read_text(encoding="utf-8"))["case"]:
            yield convert(case, Case)


def read_live(case: Case, texts: Mapping[str, Text]) -> tuple[KnownLines, tuple[str, ...]]:
    """Return what the head knows of a job whose nodes wrote these texts, and the causes it named.

    Each node reads its output, and what a node knows is reported to the head. The node with the
    true line wrote it before the others wrote what followed from it.
    """
    nodes = sorted(texts, key=lambda node: (not case.is_true_on(texts[node]), node == HEAD))
    began = first_time(text.text for text in texts.values())
    if case.began:
        began = datetime.fromisoformat(f"{case.began}Z").timestamp()
    outputs = {}
    with patch("agent.record.job_lines.say") as said:
        for at, node in enumerate(nodes):
            outputs[node] = read_output(texts[node], began + at * _BETWEEN)
        head = outputs.pop(HEAD)
        for node, output in outputs.items():
            head.known.add_from_node(node, output.known.for_head)
    sentences = [call.args[0] for call in said.call_args_list if call.args[1] == "warning"]
    live = tuple(dict.fromkeys(one for one in sentences if not UNKNOWN.search(one)))
    return head.known, live


def diagnosed(case: Case, texts: Mapping[str, Text]) -> tuple[Diagnosis, tuple[str, ...]]:
    """Return the diagnosis of the end, and the causes named live, without a run around them."""
    known, live = read_live(case, texts)
    head = texts[HEAD]
    text = head.text.encode()[head.begins :].decode()
    own = Log("", JOB_LOG, text, at=known.first_at)
    return diagnose_logs([own, *known.logs_of_nodes()]), live


def play(case: Case, folder: Path) -> Answer:
    """Return what the product says of a case, while it runs and at its end."""
    texts = case.texts()
    known, live = read_live(case, texts)
    if case.exit == 0:
        return Answer("", live)

    # The end, as the head explains it.
    environ = {"AGENT_LOG_DIR": str(folder)}
    plan = plan_of(environ, command=["true"])
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    run = made_run(plan, redactor, RunFolder(folder, case.id, HEAD), 0.0, case.id)
    run.folder.file(JOB_LOG).write_text(texts[HEAD].text, encoding="utf-8")
    run.output_begins = texts[HEAD].begins
    elsewhere = Elsewhere(known.logs_of_nodes(), NODES, first_at=known.first_at)
    outcome = Outcome(Kind.JOB_FAILED, case.exit, f"the job failed with {case.exit}")
    # The answer is graded, not the machine.
    with patch("agent.run.diagnose.CAUSE_SEARCH", _NO_LIMIT):
        end = anyio.run(explain_end, run, outcome, elsewhere).outcome.remedy
    run.close()
    return Answer(end, live)


def read_output(text: Text, at: float = 0.0) -> JobLines:
    """Return what an agent knows of its job's last attempt, which was written at this time."""
    lines = JobLines(str)
    lines.begin_attempt(1)
    lines.known = KnownLines(str, lambda: at)
    data = text.text.encode()[text.begins :]
    for start in range(0, len(data), _CHUNK):
        lines.write(data[start : start + _CHUNK], lambda _seconds: False)
    lines.close()
    return lines


# --- grades --------------------------------------------------------------------------------------


def grade_end(case: Case, answer: Answer) -> Grade:
    """Grade the sentence at the end of a run."""
    quote, named = quoted(answer.end, case)
    names_one = bool(answer.end) and UNKNOWN.search(answer.end) is None
    if case.trap:
        return Grade.WRONG if names_one else Grade.RIGHT
    if names_one:
        return Grade.RIGHT if _is_accepted(case, named) else Grade.WRONG
    return Grade.LINE if _is_true_line(case, quote) else Grade.SILENT


def grade_live(case: Case, answer: Answer) -> Grade:
    """Grade the causes that were named while the job ran: each must be right."""
    if not answer.live:
        return Grade.RIGHT if case.trap else Grade.SILENT
    named = [quoted(said, case)[1] for said in answer.live]
    if case.trap or not all(_is_accepted(case, said) for said in named):
        return Grade.WRONG
    return Grade.RIGHT


def _is_accepted(case: Case, said: str) -> bool:
    def has(pattern: str) -> bool:
        return re.search(pattern, said, re.IGNORECASE) is not None

    return any(map(has, case.accept)) and not any(map(has, case.reject))


def _is_true_line(case: Case, quote: str) -> bool:
    """Return whether a quote is from a true line, or holds one."""
    plain = _unescaped(quote)
    logs = "\n".join(without_controls(text.text) for text in case.texts().values())
    true = [one for one in logs.split("\n") if any(part in one for part in case.lines)]
    if any(line in plain for line in case.lines):
        return True
    return bool(plain) and any(plain in line for line in [*true, *case.lines])


def quoted(sentence: str, case: Case) -> tuple[str, str]:
    """Return the longest part in quotation marks that is from the case's logs, and the rest."""
    logs = "\n".join(without_controls(text.text) for text in case.texts().values())
    best = ""
    for mark in ("'", '"'):
        places = [at for at, letter in enumerate(sentence) if letter == mark]
        for start in places:
            for end in places:
                part = sentence[start + 1 : end].removesuffix("…")  # a long line is cut at its end
                if len(part) >= max(len(best) + 1, _SHORTEST_QUOTE) and _unescaped(part) in logs:
                    best = part
    return best, sentence.replace(best, "") if best else sentence


def _unescaped(quote: str) -> str:
    plain = quote.replace("\\'", "'").replace('\\"', '"').replace("\\\\", "\\")
    return plain.replace("\\t", "\t").strip("…").removesuffix("...").strip()


# --- figures -------------------------------------------------------------------------------------


class Figures(NamedTuple):
    """Grades at the end and while the job runs, by kind of cause."""

    end: dict[str, Counter[Grade]]
    live: dict[str, Counter[Grade]]


def measure(folder: Path, *, show: bool) -> Figures:
    """Play all cases of a folder; show says what was answered where it is not right."""
    end: dict[str, Counter[Grade]] = defaultdict(Counter)
    live: dict[str, Counter[Grade]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as place:
        answers = [(case, play(case, Path(place))) for case in load_runs(folder)]
    for case, answer in answers:
        kind = "trap" if case.trap else case.kind
        at_end = grade_end(case, answer)
        while_running = grade_live(case, answer)
        end[kind][at_end] += 1
        live[kind][while_running] += 1
        if show and at_end is not Grade.RIGHT:
            print(f"end {at_end.value}: {case.id}: {case.cause}\n    {answer.end or 'nothing'}")
        if show and while_running is Grade.WRONG:
            print(f"live wrong: {case.id}: {case.cause}")
            print("".join(f"    {said}\n" for said in answer.live), end="")
    return Figures(dict(end), dict(live))
