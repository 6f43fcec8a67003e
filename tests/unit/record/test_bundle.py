"""The bundle of a failed run: its content, its limits, and its duration."""

from __future__ import annotations

import json
import os
import tarfile
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import STARTING, Kind, Outcome
from agent.job.services import Placeholders
from agent.record import bundle
from agent.record.bundle import BundlePart, last_lines, make, masked_end, new_bundle
from agent.record.run_folder import RunFolder
from agent.run import failure_bundle
from agent.run.diagnose import explain_end
from agent.run.failure_bundle import Bundled, make_bundle, write_bundle
from agent.run.questions import Questions
from agent.settings.redact import MASK, Redactor, redactor_for
from support.disks import fill_up, full_disk, needs_mount
from support.node_runs import made_run
from support.worlds import SECRET, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.run.node_run import NodeRun


CLEAN = Redactor((SECRET,)).clean
FAILED = Outcome(Kind.JOB_FAILED, 3, "the job failed", "running", remedy="Look there")
LONG = 60.0


def until(seconds: float = LONG) -> float:
    """Return a time on the monotonic clock."""
    return time.monotonic() + seconds


def unpacked(path: Path) -> dict[str, str]:
    """Return what is in a bundle, by the names below its one folder."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            top, _, name = member.name.partition("/")
            assert top == path.name.removesuffix(".tar.gz")
            assert (member.mode, member.isreg()) == (0o600, True)
            file = archive.extractfile(member)
            assert file is not None
            found[name] = file.read().decode()
    return found


def made(folder: Path, *parts: BundlePart) -> dict[str, str]:
    """Make a bundle; return what is in it."""
    path = new_bundle(folder, time.time())
    assert make(path, parts, CLEAN, until()) == ""
    return unpacked(path)


def test_members(tmp_path: Path) -> None:
    """The ends of files, whole texts; missing files and pipes are left out."""
    (tmp_path / "agent.log").write_text("one\ntwo\n")
    os.mkfifo(tmp_path / "job.log")
    found = made(
        tmp_path,
        BundlePart("pod0/agent.log", tmp_path / "agent.log"),
        BundlePart("plan.txt", "the plan"),
        BundlePart("pod0/none.log", tmp_path / "none.log"),
        BundlePart("pod0/job.log", tmp_path / "job.log"),
        BundlePart("../../etc/passwd", "text"),
    )
    assert found == {
        "pod0/agent.log": "one\ntwo\n",
        "plan.txt": "the plan",
        "node/node/etc/passwd": "text",
    }


def test_the_newest_are_kept(tmp_path: Path) -> None:
    """Only their owner can read them: they may hold secrets that are unknown to the redactor."""
    for second in range(5):
        path = new_bundle(tmp_path, 1_800_000_000 + second)
        assert make(path, [BundlePart("a", "text")], CLEAN, until()) == ""
        assert path.stat().st_mode & 0o777 == 0o600
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"failure-20270115T08000{second}Z.tar.gz" for second in (2, 3, 4)]
    assert new_bundle(tmp_path, 1_800_000_004).name == "failure-20270115T080004Z-2.tar.gz"


def test_secrets_and_control_characters_are_removed(tmp_path: Path) -> None:
    """Also a secret with a color code in it; tabs and line ends stay."""
    amid = f"{SECRET[:6]}\x1b[31m{SECRET[6:]}"
    text = f"a\t{SECRET} \x1b[31mred\x1b[0m\rb \x07{amid}\u202e\u2028end\n"
    (tmp_path / "job.log").write_text(text)
    found = made(tmp_path, BundlePart("job.log", tmp_path / "job.log"), BundlePart("text", text))
    expected = f"a\t{MASK} red\nb {MASK}\nend\n"
    assert (found["job.log"], found["text"]) == (expected, expected)


def test_each_part_and_the_whole_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of each is kept, from the start of a line; what finds no room is left out."""
    monkeypatch.setattr(bundle, "MOST", 3000)
    (tmp_path / "a.log").write_text("".join(f"line {n}\n" for n in range(10_000)))
    parts = [BundlePart(name, tmp_path / "a.log", 1100) for name in "abcdef"]
    found = made(tmp_path, *parts)
    assert sum(map(len, found.values())) <= 3000
    assert found["a"].startswith("line ")
    assert found["a"].endswith("line 9999\n")
    assert "d" not in found


def test_a_cut_secret_is_removed(tmp_path: Path) -> None:
    """The end of a log starts after the line in which it was cut."""
    log = tmp_path / "a.log"
    log.write_text(f"key {SECRET}\nnext\n")
    for most in range(1, 40):
        assert SECRET[-8:] not in last_lines(log, most, CLEAN)
    log.write_text("x" * 9000 + SECRET)
    assert last_lines(log, 9000, CLEAN) == ""


@given(st.text(max_size=200), st.integers(1, 50))
def test_any_text_fits(text: str, most: int) -> None:
    """Any text fits into its limit, and controls no terminal."""
    text_found = masked_end(text, most, CLEAN)
    assert len(text_found.encode(errors="replace")) <= most
    assert not {c for c in text_found if ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0} - {"\n", "\t"}


def test_late_members_are_left_out(tmp_path: Path) -> None:
    """The bundle is complete in time, with the members available."""
    path = new_bundle(tmp_path, time.time())
    times_out = until(times.BUNDLE_EXTRA / -2)
    assert make(path, [BundlePart("a", "x"), BundlePart("b", "x")], CLEAN, times_out) == ""
    assert unpacked(path) == {}


# --- of a run ------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Iterator[NodeRun]:
    """Return a head's run whose folder lies in tmp_path."""
    made_run = run_in(tmp_path)
    yield made_run
    made_run.close()


def run_in(root: Path) -> NodeRun:
    """Return a head's run in a log folder."""
    environ = {"AGENT_LOG_DIR": str(root), "RAY_AUTH_TOKEN": SECRET}
    plan = plan_of(environ, command=["train", SECRET])
    assert plan.own_ray is not None
    plan = replace(plan, launch=replace(plan.own_ray, session=str(root / "ray")))
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    return made_run(plan, redactor, RunFolder(root, "run-1", "node-a"), 0.0, "run-1")


def the_bundle(run: NodeRun) -> Path:
    """Return the one bundle of a run."""
    (path,) = run.folder.path.glob("failure-*.tar.gz")
    return path


def test_a_failed_run_leaves_a_bundle(run: NodeRun) -> None:
    """Plan, facts, outcome and logs, the secret nowhere; the remedy names it, and outcome.json."""
    run.folder.file("job.log").write_text(f"step 1\n{SECRET}\n")
    run.folder.file("retriever.log").write_text("index loaded\n")
    bundled = anyio.run(make_bundle, run, FAILED, [BundlePart("pod1/agent.log", "bye\n")])
    end = bundled.outcome
    path = the_bundle(run)
    assert end == replace(FAILED, remedy=f"Look there. The logs of all nodes are in {path}")
    assert bundled.name == path.name
    found = unpacked(path)
    assert SECRET not in "".join(found.values())
    assert found["node-a/job.log"] == f"step 1\n{MASK}\n"
    assert found["node-a/retriever.log"] == "index loaded\n"
    assert found["pod1/agent.log"] == "bye\n"
    assert found["plan.txt"].count("job:    train ") == 1
    assert json.loads(found["node-a/facts.json"])["hostname"] == "node-a"
    text_found = json.loads(found["outcome.json"])
    assert (text_found["remedy"], text_found["bundle"]) == (end.remedy, path.name)


def test_its_first_page_is_the_cause(run: NodeRun) -> None:
    """The unknown error with the four lines before it, masked."""
    lines = [f"line {number}" for number in range(6)]
    run.folder.file("job.log").write_text("\n".join([*lines, f"ValueError: {SECRET} is bad\n"]))
    outcome, page = anyio.run(explain_end, run, FAILED)
    anyio.run(partial(make_bundle, run, outcome, page=page))
    found = unpacked(the_bundle(run))
    assert next(iter(found)) == "cause.txt"
    shown = found["cause.txt"].split("\n")
    assert shown[0].startswith("Look at the first error, in job.log:7: 'ValueError: ")
    assert shown[-6:] == [
        *(f"    line {at}" for at in range(2, 6)),
        f"    ValueError: {MASK} is bad",
        "",
    ]


def test_it_has_logs_of_ray(run: NodeRun, tmp_path: Path) -> None:
    """Of GCS, raylet, dashboard and the job's driver, the ends."""
    logs = tmp_path / "ray/session_latest/logs"
    logs.mkdir(parents=True)
    names = ["gcs_server.out", "raylet.err", "dashboard.log", "job-driver-run-1.log"]
    for name in names:
        (logs / name).write_text(f"{name} says\n")
    anyio.run(make_bundle, run, FAILED)
    found = unpacked(the_bundle(run))
    for name in names:
        assert found[f"node-a/ray/{name}"] == f"{name} says\n"


@pytest.mark.parametrize(
    ("kind", "code", "leaves"),
    [
        (Kind.DONE, 0, False),
        (Kind.STOPPED, 143, False),
        (Kind.STOPPED, 0, False),
        (Kind.JOB_FAILED, 1, True),
        (Kind.REFUSED, 78, True),
        (Kind.UNAVAILABLE, 69, True),
        (Kind.LOST, 75, True),
        (Kind.BUG, 70, True),
    ],
)
def test_which_ends_leave_a_bundle(kind: Kind, code: int, *, leaves: bool, run: NodeRun) -> None:
    """A requested end, or a success, leaves none; also where no loop runs."""
    bundled = write_bundle(run, Outcome(kind, code, "why"))
    assert (bundled.outcome.remedy != "", bundled.name != "") == (leaves, leaves)


def test_a_refused_run_leaves_none(run: NodeRun) -> None:
    """It has no logs: the reason is in the outcome."""
    end = Outcome(Kind.REFUSED, 78, "ports: taken: 8265", STARTING, "ports", "End that process")
    assert anyio.run(make_bundle, run, end) == write_bundle(run, end) == Bundled(end)
    assert not list(run.folder.path.glob("failure-*"))


@needs_mount
def test_a_full_disk_is_one_log_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome stays, and no incomplete file is left."""
    said = logged(monkeypatch)
    with full_disk(tmp_path / "disk", "size=256k") as root:
        run = run_in(root)
        fill_up(root)
        assert anyio.run(make_bundle, run, FAILED) == Bundled(FAILED)
        assert [path.name for path in run.folder.path.glob(".*.part")] == []
        run.close()
    assert said == [f"no failure bundle in {run.folder.path}: No space left on device"]


def test_a_stalled_disk_does_not_delay_the_end(
    run: NodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle is abandoned, and no file appears later."""
    said, stalls, over = logged(monkeypatch), threading.Event(), threading.Event()
    monkeypatch.setattr(times, "BUNDLE_EXTRA", 0.1)
    run.plan = replace(run.plan, budget=replace(run.plan.budget, bundle=0.1))

    def stalled(_making: object) -> Iterator[BundlePart]:
        yield BundlePart("a", "text")
        stalls.wait(LONG)
        yield BundlePart("b", "text")
        over.set()

    monkeypatch.setattr(failure_bundle, "local_logs", stalled)
    assert anyio.run(make_bundle, run, FAILED) == Bundled(FAILED)
    stalls.set()
    over.wait(1.0)
    assert list(run.folder.path.glob("failure-*")) == []
    assert said == [f"no failure bundle in {run.folder.path}: the disk took longer than 0.2 s"]


def test_an_error_of_the_bundle_changes_no_outcome(
    run: NodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error of the bundle is only logged."""
    said = logged(monkeypatch)

    def broken(*_told: object) -> str:
        raise LookupError("no such thing")

    monkeypatch.setattr(failure_bundle, "local_logs", broken)
    assert anyio.run(make_bundle, run, FAILED) == Bundled(FAILED)
    assert said == [f"no failure bundle in {run.folder.path}: LookupError: no such thing"]


def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is said from now on."""
    said: list[str] = []
    monkeypatch.setattr(
        failure_bundle, "say", lambda sentence, _level="info", **_: said.append(sentence)
    )
    return said


# --- a worker's ----------------------------------------------------------------------------------


def test_a_failing_worker_sends_its_logs(run: NodeRun) -> None:
    """All with its goodbye, by name; after a success only one line."""
    run.folder.file("agent.log").write_text(f"one\n{SECRET}\n")
    run.folder.file("ray-start.log").write_text("\x1b[31mstarted\x1b[0m\n")
    asked = Questions(run, Placeholders, lambda: None)
    assert anyio.run(asked.read_log_tails, Outcome(Kind.DONE, 0, "fine")) == f"one | {MASK}"
    assert asked.for_report()[0] is None
    assert anyio.run(asked.read_log_tails, FAILED) == f"one | {MASK}"
    assert asked.for_report()[0] == {"agent": f"one\n{MASK}\n", "ray": "started\n"}
