"""Put harmless lines into the logs of each corpus, and count the answers that change.

Before a log, behind it and between its records stand a dozen harmless lines, drawn from logs of
runs that succeed. Nothing of them may change what is answered.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.base.text import parse_toml
from agent.decisions.shared import place
from agent.diagnosis.errors import forms
from agent.diagnosis.errors.log_parser import LogParser
from agent.diagnosis.errors.prefixes import read_line
from agent.diagnosis.rows import known_signs
from causes.ordinary.lines import TEMPLATES, fill
from tools.causes.cases import diagnosis, live_answer, load
from tools.causes.logs import Text, marked, time_near, timed
from tools.causes.runs import diagnosed, load_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.diagnosis.find_cause import Diagnosis
    from tools.causes.runs import Case

CORPORA = Path(__file__).resolve().parents[3] / "tests" / "causes"
WHERE = ("before", "behind", "between")
_COUNT = 12  # lines or records that are put into a log
_RECORDS = CORPORA / "ordinary" / "records.toml"
_LIKE_ERRORS = 0.5  # the part of them that looks like errors


class Change(NamedTuple):
    """An answer that harmless lines have changed."""

    corpus: str
    case: str
    where: str
    when: str  # at the end, or as it runs
    former: str
    now: str


class Counted(NamedTuple):
    """How many answers were compared, and those that changed."""

    answers: int
    changes: tuple[Change, ...]


def count_changes(seed: int, part: int = 1) -> Counted:
    """Perturb each case of the corpora, or one of so many, and return what changed."""
    answers = 0
    changes: list[Change] = []
    for corpus, name, variants in _cases(seed, part):
        former = variants.pop("")
        for where, now in variants.items():
            for when in former:
                answers += 1
                if now[when] != former[when]:
                    changes.append(Change(corpus, name, where, when, former[when], now[when]))
    return Counted(answers, tuple(changes))


def _cases(seed: int, part: int) -> Iterator[tuple[str, str, dict[str, dict[str, str]]]]:
    """Yield each case with its answers by where harmless lines stand; '' for the plain log."""
    chance = random.Random(seed)  # noqa: S311 - a draw of cases needs no secret
    for _, case in load(CORPORA / "seen"):
        if chance.randrange(part) == 0:
            yield "seen", case["id"], _seen_answers(case, seed)
    for corpus in ("seen_runs", "held_out"):
        for run in load_runs(CORPORA / corpus):
            if chance.randrange(part) == 0:
                yield corpus, run.id, _run_answers(run, seed)


def _seen_answers(case: Mapping[str, Any], seed: int) -> dict[str, dict[str, str]]:
    answers = {}
    for where in ("", *WHERE):
        chance = random.Random(f"{seed} {case['id']} {where}")  # noqa: S311 - as above
        beside = [line for log in case["logs"].values() for line in log]
        changed = {
            node: perturbed(log, where, chance, beside) for node, log in case["logs"].items()
        }
        end = diagnosis({**case, "logs": changed})
        live = live_answer({**case, "logs": changed})
        answers[where] = {
            "at the end": _shown(end),
            "as it runs": live.key,
        }
    return answers


def _shown(end: Diagnosis) -> str:
    """Return what a user reads of a diagnosis, without the place in the log."""
    return f"{end.cause} ({end.line}){place(end.node, end.rank)}"


def _run_answers(case: Case, seed: int) -> dict[str, dict[str, str]]:
    answers = {}
    for where in ("", *WHERE):
        chance = random.Random(f"{seed} {case.id} {where}")  # noqa: S311 - as above
        former = case.texts()
        beside = [line for text in former.values() for line in text.text.split("\n")]
        texts = {
            node: _perturbed_text(text, where, chance, beside) for node, text in former.items()
        }
        end, live = diagnosed(case, texts)
        answers[where] = {
            "at the end": _shown(end) if case.exit else "",
            "as it runs": "\n".join(sorted(live)),
        }
    return answers


def _perturbed_text(text: Text, where: str, chance: random.Random, beside: Sequence[str]) -> Text:
    """Put harmless lines into the output of the last attempt."""
    data = text.text.encode()
    former = data[: text.begins].decode()
    lines = data[text.begins :].decode().removesuffix("\n").split("\n")
    return Text(former + "\n".join([*perturbed(lines, where, chance, beside), ""]), text.begins)


def perturbed(
    lines: Sequence[str], where: str, chance: random.Random, beside: Sequence[str] = ()
) -> list[str]:
    """Return the lines with a dozen harmless records at a place; other logs are beside it."""
    if not where:
        return [*lines]
    places = {"before": [0], "behind": [len(lines)], "between": [*between_records(lines)]}[where]
    chosen = sorted(chance.choices(places, k=_COUNT))
    changed: list[str] = []
    at = 0
    for here in chosen:
        changed += lines[at:here]
        at_time = time_near(lines, here, beside)
        changed += [timed(line, 0, at_time) for line in harmless(chance)]
        at = here
    return [*changed, *lines[at:]]


def between_records(lines: Sequence[str]) -> Iterator[int]:
    """Yield the places where a record begins, and the end: others are within a record.

    A record is a message with the lines that belong to it: of a traceback, a stack, a title.
    """
    parser = LogParser(signs=known_signs())
    previous = ""
    for number, line in enumerate(lines):
        was_open = parser.is_open
        parser.feed(line)
        body = read_line(line).body
        is_apart = bool(body.strip()) and bool(previous.strip()) and body[0].isalnum()
        is_title = previous.rstrip().endswith((":", ",", "(", "["))
        is_below = previous.startswith(forms.HARMLESS_BEFORE)
        is_of_chain = any(words in body for words in forms.CHAINED)
        is_within = is_title or is_below or is_of_chain or was_open or parser.has_continued
        if is_apart and not is_within:
            yield number
        previous = body
    yield len(lines)


def harmless(chance: random.Random) -> list[str]:
    """Draw a harmless record; half of them look like errors."""
    pool = _records() if chance.random() < _LIKE_ERRORS else _ordinary()
    return fill(marked(chance.choice(pool)), chance).split("\n")


@cache
def _records() -> list[str]:
    """Return the harmless records that look like errors."""
    records = parse_toml(_RECORDS.read_text(encoding="utf-8"))["records"]
    return [record.strip("\n") for record in records]


@cache
def _ordinary() -> list[str]:
    """Return the templates of ordinary records, without those that show a step.

    An indented line is no record: behind an error it reads as a part of its message.
    """
    records = [one for one in TEMPLATES if not one[:1].isspace()]
    return [one for one in records if not _is_step(fill(one, random.Random(0)))]  # noqa: S311 - no secret


def _is_step(template: str) -> bool:
    """Return whether a line shows a step: that a job went on is no harmless line behind an end."""
    return forms.PROGRESS.search(template) is not None or "loss=" in template
