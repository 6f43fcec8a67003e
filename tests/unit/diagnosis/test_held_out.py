"""Held-out cases: their shape, their grades, and causes in ordinary logs."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from tools.causes import ordinary
from tools.causes.__main__ import main
from tools.causes.logs import written
from tools.causes.ordinary import Source, fetched, read_sources
from tools.causes.runs import Answer, Case, Grade, grade_end, grade_live, load_runs, measure, play

CAUSES = Path(__file__).parents[2] / "causes"
CASES = [*load_runs(CAUSES / "held_out")]
FAILED = Case(
    id="one",
    thread="",
    kind="disk",
    cause="The disk is full.",
    logs={"head": "step 1/2\nOSError: [Errno 28] No space left on device"},
    accept=("disk",),
    reject=("shared memory",),
    lines=("OSError: [Errno 28] No space left on device",),
)
TRAP = replace(FAILED, trap=True)


# --- shape ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_a_case_is_whole(case: Case) -> None:
    """Its true lines are in its logs, its expressions are valid, and its thread is locked."""
    texts = [text.text for text in case.texts().values()]
    assert all(any(line in text for text in texts) for line in case.lines)
    assert case.trap or case.lines
    assert not (case.trap and case.accept)
    assert case.exit or case.trap
    assert case.cause.endswith(".")
    for pattern in (*case.accept, *case.reject):
        re.compile(pattern)
    locked = (CAUSES / "held_out_threads.txt").read_text().splitlines()
    assert case.thread in locked or (case.trap and not case.thread)


def test_there_are_enough_cases() -> None:
    """216 failures, each of its own thread, half of them long or of two nodes; 50 traps."""
    cases = [case for case in CASES if not case.trap]
    threads = [case.thread for case in CASES if case.thread]
    long = 0
    for case in cases:
        texts = [text.text for text in case.texts().values()]
        has_two = len(texts) > 1 or any("ip=10.8.0.12" in text for text in texts)
        long += has_two or any(text.count("\n") >= 500 for text in texts)

    assert len(cases) >= 216
    assert len(CASES) - len(cases) >= 50
    assert len(threads) == len(set(threads))
    assert len({case.id for case in CASES}) == len(CASES)
    assert 2 * long >= len(cases)


def test_logs_are_written_out() -> None:
    """Prefixes, ordinary lines, frames and the beginning of the last attempt; always the same."""
    source = (
        '%% noise 3 verl\n%% attempt\n%% prefix "\\u001b[36m(W pid=1)\\u001b[0m "\nx\n%% end\n'
        "%% frames elastic"
    )
    text = written(source, "a-case")
    lines = text.text.split("\n")
    assert lines[3] == "\x1b[36m(W pid=1)\x1b[0m x"
    assert text.text.encode()[text.begins :].startswith(b"\x1b[36m")
    assert lines[-2].endswith("ChildFailedError: ")
    assert written(source, "a-case") == text
    assert written(source, "another").text != text.text


# --- grades --------------------------------------------------------------------------------------

QUOTE = "'OSError: [Errno 28] No space left on device'"


SHOWN = "no known cause: the first error is"


@pytest.mark.parametrize(
    ("end", "grade", "of_trap"),
    [
        (f"job.log shows why: a disk is full ({QUOTE}). Look", Grade.RIGHT, Grade.WRONG),
        (f"job.log shows why: a disk or the shared memory ({QUOTE})", Grade.WRONG, Grade.WRONG),
        (f"job.log shows why: the network is down ({QUOTE})", Grade.WRONG, Grade.WRONG),
        (f"job.log shows why: no such thing ({QUOTE})", Grade.WRONG, Grade.WRONG),
        (f"{SHOWN} {QUOTE} in job.log", Grade.LINE, Grade.RIGHT),
        (f"{SHOWN} 'OSError: [Errno 28] No space…' in job.log", Grade.LINE, Grade.RIGHT),
        (f"{SHOWN} 'step 1/2' in job.log", Grade.SILENT, Grade.RIGHT),
        ("", Grade.SILENT, Grade.RIGHT),
    ],
)
def test_the_end_is_graded(end: str, grade: Grade, of_trap: Grade) -> None:
    """By the named cause without the quoted line, else by the line; a trap's names no cause."""
    assert grade_end(FAILED, Answer(end, ())) is grade
    assert grade_end(TRAP, Answer(end, ())) is of_trap


@pytest.mark.parametrize(
    ("live", "grade", "of_trap"),
    [
        ((), Grade.SILENT, Grade.RIGHT),
        (("a disk is full. Free it",), Grade.RIGHT, Grade.WRONG),
        (("a disk is full. Free it", "the hub is down. Wait"), Grade.WRONG, Grade.WRONG),
    ],
)
def test_what_is_named_while_it_runs_is_graded(
    live: tuple[str, ...], grade: Grade, of_trap: Grade
) -> None:
    """Each named cause must be right; a trap names none."""
    assert grade_live(FAILED, Answer("", live)) is grade
    assert grade_live(TRAP, Answer("", live)) is of_trap


def test_a_case_goes_the_way_of_a_run(tmp_path: Path) -> None:
    """Another node's known line reaches the head's end; a former attempt's does not count."""
    answer = play(FAILED, tmp_path)
    assert (grade_end(FAILED, answer), grade_live(FAILED, answer)) == (Grade.RIGHT, Grade.SILENT)
    ended = {"head": f"{FAILED.logs['head']}\nJob 'raysubmit_1' failed"}
    answer = play(replace(FAILED, id="ended", logs=ended), tmp_path)
    assert (grade_end(FAILED, answer), grade_live(FAILED, answer)) == (Grade.RIGHT, Grade.RIGHT)
    elsewhere = replace(FAILED, logs={"head": "step 1/2", "worker-1": FAILED.logs["head"]})
    answer = play(replace(elsewhere, id="two"), tmp_path)
    assert grade_end(elsewhere, answer) is Grade.RIGHT
    assert "worker-1" in answer.end
    former = {"head": f"{FAILED.logs['head']}\n%% attempt\nstep 1/2"}
    assert play(replace(FAILED, id="three", logs=former), tmp_path).end == ""
    assert play(replace(FAILED, id="four", exit=0), tmp_path).end == ""


def test_figures_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`scripts/causes --cases FOLDER` prints a table by kind, and with -v what is not right."""
    (tmp_path / "own.toml").write_text(
        '[[case]]\nid = "one"\nthread = ""\nkind = "disk"\ncause = "No."\naccept = ["hub"]\n'
        'lines = ["OSError"]\n[case.logs]\nhead = "OSError: [Errno 28] No space left on device"\n'
    )
    assert main(["--cases", str(tmp_path), "-v"]) == 0
    printed = capsys.readouterr().out
    assert "end wrong: one: No." in printed
    assert re.search(r"disk +0 +0 +0 +1", printed)
    figures = measure(tmp_path, show=False)
    assert figures.end["disk"][Grade.WRONG] == 1


# --- ordinary logs -------------------------------------------------------------------------------


def test_sources_of_ordinary_lines_are_listed() -> None:
    """At least 100,000 lines, each file with commit and checksum."""
    sources = read_sources()
    assert sum(source.lines for source in sources) >= 100_000
    assert len({source.file for source in sources}) == len(sources)
    for source in sources:
        assert re.fullmatch(r"[0-9a-f]{40}", source.commit)
        assert re.fullmatch(r"[0-9a-f]{64}", source.sha256)


def test_causes_in_ordinary_lines_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source is read from a clone once; logs that lie in the folder count as well."""
    clone = tmp_path / "mirrors" / "lab+logs"
    text = b"step 1/2\nall is well\n"
    subprocess.run(["git", "init", "-q", str(clone)], check=True)
    (clone / "a.txt").write_bytes(text)
    who = ["-c", "user.name=lab", "-c", "user.email=lab@lab.invalid"]
    for command in (["add", "."], [*who, "commit", "-qm", "logs"]):
        subprocess.run(["git", "-C", str(clone), *command], check=True)
    found = subprocess.run(
        ["git", "-C", str(clone), "rev-parse", "HEAD"], capture_output=True, check=True
    )
    commit = found.stdout.decode().strip()
    source = Source("lab/logs", commit, "a.txt", hashlib.sha256(text).hexdigest(), 2)
    folder = tmp_path / "logs"
    folder.mkdir()
    assert fetched(source, folder, tmp_path / "mirrors") == text.decode()
    assert fetched(replace(source, sha256="0" * 64), folder, None) is None
    ended = "OSError: [Errno 28] No space left on device\nJob 'raysubmit_1' failed\n"
    (folder / "own.log").write_text(ended)
    monkeypatch.setattr(ordinary, "read_sources", lambda: [source])
    assert main(["--ordinary", str(folder)]) == 1
    printed = capsys.readouterr().out
    assert re.search("own.log: as it runs: .*a disk is full", printed)
    assert "2 logs, 5 lines: 2 causes named" in printed
