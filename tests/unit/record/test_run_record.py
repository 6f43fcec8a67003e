"""run.json: its content, its fingerprint, and the choice of the run to resume."""

from __future__ import annotations

import json
import math
import os
import shlex
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base import ends
from agent.base.ends import Kind, Outcome
from agent.base.errors import PreflightError
from agent.base.text import seconds_between
from agent.decisions.attempts import Attempt, EndedAttempt, FailureCause, JobReport
from agent.decisions.durable import Durable, Losses, StepHolder, Stop, Succession
from agent.decisions.receipt import Meter
from agent.decisions.shared import HERE, Outage
from agent.frameworks.recipe import JobBasis, ModelShape
from agent.record.files import LockHolder, NoRecord
from agent.record.node_record import Moment, own_record, process_of
from agent.record.outcome_file import facts_of
from agent.record.run_record import (
    RUN_FILE,
    ChosenRun,
    Measured,
    RunRecord,
    SavedMeter,
    Submitter,
    choose_run,
    fingerprint,
    outcomes_of,
    run_to_return_to,
    why_not_resumed,
)
from agent.run.run_store import RunStore
from agent.settings.redact import Redactor, secrets_in
from support.disks import fill_up, full_disk, needs_mount
from support.run_records import NOW, record_of, submitted, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DURABLE = Durable("4711", "f" * 16, 1_700_000_000_000, head="pod0")
RECORD = record_of(DURABLE, Measured(ranks=("pod1", "pod2")))
IS_OVER = ends.JOB_SUCCEEDED.outcome(before="")
OUTCOMES = st.builds(Outcome, st.sampled_from(Kind), st.integers(0, 255), st.text())
MOMENTS = st.floats(-1e9, 1e9)
RECORDS = st.builds(
    RunRecord,
    st.builds(Moment, st.text()),
    st.builds(
        Durable,
        st.text(),
        st.text(),
        st.integers(),
        ended=st.lists(
            st.builds(
                EndedAttempt,
                st.integers(),
                *(st.text(), st.text(), st.text(), st.text()),
                st.none() | st.integers(),
                st.none() | st.floats(0, 1e9),
                cause=st.none() | st.builds(FailureCause, st.text(), st.text()),
            )
        ).map(tuple),
        attempt=st.builds(
            Attempt,
            st.text(),
            submitted=st.none() | MOMENTS,
            workers=st.dictionaries(st.text(), st.text(), max_size=3),
            dead_node_ids=st.frozensets(st.text()),
        ),
        losses=st.builds(Losses, st.none() | MOMENTS, st.text(), st.none() | MOMENTS),
        stop=st.none() | st.builds(Stop, OUTCOMES, MOMENTS),
        verdict=st.none() | OUTCOMES,
        outages=st.lists(st.builds(Outage, st.text(), st.text(), MOMENTS, st.none() | MOMENTS)).map(
            tuple
        ),
        holders=st.lists(st.builds(StepHolder, st.text(), st.text(), st.text())).map(tuple),
    ),
    st.builds(
        Measured,
        basis=st.none()
        | st.builds(
            JobBasis,
            st.none() | st.builds(ModelShape.from_name, st.sampled_from(["7B", "30B-A3B"])),
            st.none() | st.floats(0, 1e12),
            st.dictionaries(st.text(), st.text(), max_size=3),
        ),
        receipt=st.none() | st.builds(SavedMeter, st.builds(Moment, st.text()), st.just(Meter())),
        submitter=st.none() | st.builds(Submitter, st.integers(), st.text(), st.integers()),
    ),
)


def changed(**changes: object) -> RunRecord:
    """Return the record with changes of what is durable."""
    return replace(RECORD, durable=replace(DURABLE, **changes))


def test_attempts_of_a_run() -> None:
    """Attempts begin and end, each once."""
    lost = Outcome(Kind.LOST, 75, "a node was lost")
    durable = submitted(DURABLE).with_end(lost, NOW, 3.0)
    durable = submitted(durable.with_end(Outcome(Kind.LOST, 3, "said again"), NOW))
    assert [(one.number, one.start, one.end, one.reason) for one in outcomes_of(durable)] == [
        (1, NOW, NOW, "a node was lost"),
        (2, NOW, None, ""),
    ]
    assert durable.attempt.id == "4711-2"
    assert durable.with_end(IS_OVER, NOW).open_attempt is None
    assert DURABLE.with_end(IS_OVER, NOW) == DURABLE


@given(RECORDS)
def test_a_record_survives_the_disk(record: RunRecord) -> None:
    """The record that is read equals the one written."""
    assert RunRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_a_record_is_written_whole(tmp_path: Path) -> None:
    """No other file is left."""
    assert RECORD.write(tmp_path / RUN_FILE) is None
    assert RunRecord.read(tmp_path / RUN_FILE) == RECORD
    assert [path.name for path in tmp_path.iterdir()] == [RUN_FILE]


GOOD: dict[str, Any] = json.loads(json.dumps(record_of(submitted(DURABLE)).to_dict()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 1}, "its version is 1, not 2 (another release wrote it; let a run end before"),
        ({"version": 3}, "its version is 3, not 2"),
        ({"version": True}, "its version is True"),
        ({"version": None}, "its version is None"),
        ({"clock": 7}, "- at `$.clock`"),
        ({"durable": {"epoch": "1"}}, "- at `$.durable.epoch`"),
        ({"durable": {"epoch": True}}, "- at `$.durable.epoch`"),
        ({"durable": {"run_id": 4711}}, "- at `$.durable.run_id`"),
        ({"durable": {"losses": []}}, "- at `$.durable.losses`"),
        ({"durable": {"ended": {}}}, "- at `$.durable.ended`"),
        ({"durable": {"ended": [1]}}, "- at `$.durable.ended[0]`"),
        ({"durable": {"ended": [{}]}}, "- at `$.durable.ended[0]`"),
        ({"durable": {"attempt": {"required": "1"}}}, "- at `$.durable.attempt"),
        ({"durable": {"verdict": {}}}, "- at `$.durable.verdict`"),
        ({"durable": {"verdict": 7}}, "it is no such record"),
    ],
)
def test_invalid_records_have_a_reason(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """A foreign or newer file is refused with a reason, never by an exception."""
    changes = {key: {**GOOD[key], **of} if key == "durable" else of for key, of in change.items()}
    (tmp_path / RUN_FILE).write_text(json.dumps({**GOOD, **changes}))
    found = RunRecord.read(tmp_path / RUN_FILE)
    assert isinstance(found, NoRecord)
    assert words in found.why
    assert not found.is_missing


@pytest.mark.parametrize(
    "data", [b"", b"{", b"null", b"[]", b'"x"', b"\xff", b"[" * 100_000, b" " * (5 << 20)]
)
def test_a_broken_file_is_no_record(tmp_path: Path, data: bytes) -> None:
    """Any bytes are accepted as input."""
    (tmp_path / RUN_FILE).write_bytes(data)
    assert isinstance(RunRecord.read(tmp_path / RUN_FILE), NoRecord)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A folder and a pipe are refused; a missing file is missing."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, free in {"folder": False, "pipe": False, "nothing": True}.items():
        found = RunRecord.read(tmp_path / name)
        assert isinstance(found, NoRecord)
        assert found.is_missing is free


@needs_mount
def test_a_full_disk_leaves_the_former_record(tmp_path: Path) -> None:
    """The old record stays, the error is returned, and no other file is left."""
    with full_disk(tmp_path / "disk", "size=64k") as disk:
        assert RECORD.write(disk / RUN_FILE) is None
        fill_up(disk)
        error = changed(head="x" * 5000).write(disk / RUN_FILE)
        assert error is not None
        assert error.strerror == "No space left on device"
        assert RunRecord.read(disk / RUN_FILE) == RECORD
        assert sorted(path.name for path in disk.iterdir()) == ["fill", RUN_FILE]


def test_readers_read_whole_records(tmp_path: Path) -> None:
    """Also while two writers replace the file."""
    path = tmp_path / RUN_FILE
    long = changed(head="x" * 50_000)
    RECORD.write(path)

    def write(record: RunRecord) -> None:
        for _ in range(50):
            assert record.write(path) is None

    writers = [threading.Thread(target=write, args=(record,)) for record in (RECORD, long)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert RunRecord.read(path) in [RECORD, long]
    assert [file.name for file in tmp_path.iterdir()] == [RUN_FILE]


# --- what makes a run this run -----------------------------------------------------------------


def fingerprint_of(*argv: str, secrets: tuple[str, ...] = (), **settings: str) -> str:
    """Hash a command and settings, with these secrets known."""
    return fingerprint(argv, "ray", settings, Redactor(secrets).clean)


def test_the_fingerprint_distinguishes_jobs() -> None:
    """It depends on command, launcher, recipe settings and the ends of words."""
    clean = Redactor(()).clean
    found = {
        fingerprint(None, "ray", {}, clean),
        fingerprint((), "ray", {}, clean),
        fingerprint(("a",), "ray", {}, clean),
        fingerprint(("a", ""), "ray", {}, clean),
        fingerprint(("a", "b"), "ray", {}, clean),
        fingerprint(("a b",), "ray", {}, clean),
        fingerprint(("a",), "torchrun", {}, clean),
        fingerprint(("a",), "ray", {"AGENT_MODEL": "a"}, clean),
        fingerprint(("a",), "ray", {"AGENT_MODEL": "b"}, clean),
    }
    assert len(found) == 9
    assert fingerprint_of("a", A="1", B="2") == fingerprint_of("a", B="2", A="1")


def test_a_new_token_keeps_the_fingerprint() -> None:
    """Secrets are masked: known ones anywhere, others by their names."""
    one = fingerprint_of("run", "token-number-one", secrets=("token-number-one",))
    assert one == fingerprint_of("run", "token-number-two", secrets=("token-number-two",))
    for before, after in [
        (("--wandb-api-key", "abc123xyz"), ("--wandb-api-key", "def456xyz")),
        (("--auth.token=abc123xyz",), ("--auth.token=def456xyz",)),
        (("HF_TOKEN=abc123xyz", "x"), ("HF_TOKEN=def456xyz", "x")),
    ]:
        found = [
            fingerprint_of(*argv, secrets=(*secrets_in("", shlex.join(argv)),))
            for argv in (before, after)
        ]
        assert found[0] == found[1]
    assert fingerprint_of("--lr", "1") != fingerprint_of("--lr", "2")


# --- which run this is -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "node", "why"),
    [
        (RECORD, "", ""),
        (RECORD, "pod0", ""),
        (changed(head=""), "pod1", ""),
        (changed(verdict=IS_OVER), "", "it has ended"),
        (changed(fingerprint="0"), "", "it is of another job, or other settings"),
        (RECORD, "pod1", "its head is pod0"),
    ],
)
def test_why_a_run_is_not_resumed(record: RunRecord, node: str, why: str) -> None:
    """A run is resumed if it has not ended and is of the same job."""
    assert why_not_resumed(record, DURABLE.fingerprint, node) == why


def new_ids() -> Callable[[], str]:
    """Return what names new runs: new-1, new-2 and so on."""
    number = iter(range(1, 100))
    return lambda: f"new-{next(number)}"


def choose(root: Path, platform: str | None = None, node: str = "pod0") -> ChosenRun:
    """Choose a run for RECORD's job."""
    return choose_run(root, platform, DURABLE.fingerprint, new_ids(), node=node)


def leave(root: Path, record: RunRecord) -> None:
    """Leave a run behind, as the latest."""
    folder = root / record.durable.run_id
    folder.mkdir(parents=True, exist_ok=True)
    record.write(folder / RUN_FILE)
    (root / "latest").unlink(missing_ok=True)
    (root / "latest").symlink_to(record.durable.run_id)


def test_a_new_run(tmp_path: Path) -> None:
    """In an empty folder: the platform's id or a new one."""
    assert choose(tmp_path / "a", "4711").run_id == "4711"
    assert choose(tmp_path / "b").run_id == "new-1"
    assert choose(tmp_path / "c").before is None


def test_a_run_is_resumed(tmp_path: Path) -> None:
    """By the platform's id, or as the latest."""
    leave(tmp_path, RECORD)
    for platform in ("4711", None):
        chosen = choose(tmp_path, platform)
        assert (chosen.run_id, chosen.before) == ("4711", RECORD)
        assert chosen.lock is not None
        chosen.lock.release()


def test_a_worker_returns_to_its_folder(tmp_path: Path) -> None:
    """In the platform's newest run that is not over, if this node has a folder there."""

    def found(platform: str | None = "4711", node: str = "pod1") -> str:
        return run_to_return_to(tmp_path, platform, node)

    leave(tmp_path, RECORD)
    assert found() == ""
    (tmp_path / "4711" / "pod1").mkdir()
    assert (found(), found(node="pod2"), found(None)) == ("4711", "", "")
    leave(tmp_path, changed(verdict=IS_OVER))
    assert found() == ""
    (tmp_path / "4711-2" / "pod1").mkdir(parents=True)  # a disk of this node alone has no run.json
    assert found() == "4711-2"


def test_an_ended_run_of_the_platform_gets_a_number(tmp_path: Path) -> None:
    """The next free id, or a numbered run to resume; skipped runs have a reason."""
    leave(tmp_path, changed(verdict=IS_OVER))
    leave(tmp_path, changed(run_id="4711-2", fingerprint="other"))
    (tmp_path / "4711-3").mkdir()
    (tmp_path / "4711-3" / RUN_FILE).write_text("{")
    chosen = choose(tmp_path, "4711")
    assert chosen.run_id == "4711-4"
    assert chosen.skipped.startswith("run 4711-3 is not resumed: it is broken")
    assert chosen.is_unread
    assert chosen.lock is not None
    chosen.lock.release()
    leave(tmp_path, changed(run_id="4711-4"))
    assert choose(tmp_path, "4711").before == changed(run_id="4711-4")


@pytest.mark.parametrize(
    "record",
    [
        changed(verdict=IS_OVER),
        changed(fingerprint="other"),
        changed(head="pod7"),
    ],
)
def test_a_latest_run_that_is_not_resumed(tmp_path: Path, record: RunRecord) -> None:
    """It is over, of another job, or another cluster's on the same disk: a new run."""
    leave(tmp_path, record)
    chosen = choose(tmp_path)
    assert (chosen.run_id, chosen.before) == ("new-1", None)
    assert chosen.skipped


@pytest.mark.parametrize("target", ["../elsewhere", "/etc", "gone", ".", "", "a/b"])
def test_latest_outside_the_log_folder_is_ignored(tmp_path: Path, target: str) -> None:
    """A link out of the log folder, or to nothing, is no run, and no folder is made."""
    root = tmp_path / "logs"
    root.mkdir()
    (tmp_path / "elsewhere").mkdir()
    RECORD.write(tmp_path / "elsewhere" / RUN_FILE)
    if target:
        (root / "latest").symlink_to(target)
    else:
        (root / "latest").mkdir()
    assert choose(root).run_id == "new-1"
    assert not (root / "gone").exists()


@pytest.mark.parametrize("platform", ["4711", None])
def test_concurrent_heads_choose_different_runs(tmp_path: Path, platform: str | None) -> None:
    """One resumes the run, the others make new ones."""
    leave(tmp_path, RECORD)
    chosen: list[ChosenRun] = []
    new = new_ids()

    def head() -> None:
        chosen.append(choose_run(tmp_path, platform, DURABLE.fingerprint, new))

    heads = [threading.Thread(target=head) for _ in range(8)]
    for one in heads:
        one.start()
    for one in heads:
        one.join()
    assert len({c.run_id for c in chosen}) == 8
    assert [c.before for c in chosen].count(RECORD) == 1


def test_without_locks_a_head_that_runs_here_keeps_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk without locks its process counts; heads on two machines are ordered by epochs."""
    monkeypatch.setattr("agent.record.files.FileLock.take", lambda _: LockHolder.UNKNOWN)
    leave(tmp_path, RECORD)
    node = tmp_path / "4711" / "pod0" / "node.json"
    node.parent.mkdir()
    mine = own_record("pod0", "4711")
    parent = process_of("agent", os.getppid())
    assert parent is not None
    beside = replace(mine, agent=parent)
    beside.write(node)
    assert choose(tmp_path, "4711").run_id == "4711-2"
    for gone in (replace(beside, ended=True), replace(beside, agent=replace(parent, start=1))):
        gone.write(node)
        assert choose(tmp_path, "4711").run_id == "4711"


def test_an_unwritable_root_still_names_a_run(tmp_path: Path) -> None:
    """Making the run folder reports the error, with a remedy."""
    (tmp_path / "file").write_text("")
    assert choose(tmp_path / "file" / "logs", "4711").run_id == "4711"
    assert choose(tmp_path / "file" / "logs").run_id == "new-1"


def test_without_a_free_run(tmp_path: Path) -> None:
    """The search ends with 78 and a reason."""
    leave(tmp_path, changed(verdict=IS_OVER, run_id="same"))
    (tmp_path / "latest").unlink()
    with pytest.raises(PreflightError, match="is free") as caught:
        choose_run(tmp_path, None, DURABLE.fingerprint, lambda: "same")
    assert caught.value.culprit == "AGENT_LOG_DIR"


@pytest.mark.parametrize(
    ("job_survives", "outcome", "following"),
    [(False, (1, False, "its head was lost"), 2), (True, (1, True, ""), 1)],
)
def test_the_job_of_a_killed_head(
    tmp_path: Path, outcome: tuple[int, bool, str], following: int, *, job_survives: bool
) -> None:
    """It is submitted again, with a new number; where the platform runs Ray, it is followed."""
    left = record_of(submitted(DURABLE))
    store = taken_up(tmp_path, Succession(job_survives=job_survives), left)
    store.close()
    (found,) = outcomes_of(store.durable)
    assert (found.number, found.end is None, found.reason) == outcome
    assert (store.durable.open_attempt is not None) is job_survives
    assert store.durable.before_attempt(0).attempt.number == following


def taken_up(
    root: Path,
    how: Succession = Succession(),  # noqa: B008 - a value
    record: RunRecord = RECORD,
) -> RunStore:
    """Return the store of a head that goes on with the run."""
    (root / "4711").mkdir(exist_ok=True)
    return RunStore(root, "f" * 16, ChosenRun("4711", record), how)


def test_attempts_are_sized_alike(tmp_path: Path) -> None:
    """What the first attempt's recipe was sized by is that of every later head, too."""
    store = taken_up(tmp_path)
    assert store.measured.basis is None
    basis = JobBasis(ModelShape.from_name("7B"), 1e8)
    store.measure(basis=basis)
    store.close()
    assert written(tmp_path, "4711").measured.basis == basis


def test_a_later_head_knows_at_which_step_and_by_what_attempts_ended(tmp_path: Path) -> None:
    """Else each head of a run would try a job that ends at the same step once more."""
    store = taken_up(tmp_path)
    cause = FailureCause("illegal access", "a CUDA kernel accessed memory illegally")
    end = ends.FAILED_WITHOUT_CODE.outcome(evidence="it died", before="")
    durable = store.durable
    for _ in range(2):
        report = JobReport("FAILED", cause=cause)
        durable = submitted(durable).with_end(end, NOW, 9.0, report)
    durable = submitted(durable).with_end(ends.HEAD_LOST.outcome(), NOW)
    *known, last = durable.ended
    rows = (*(replace(one, last_step=25) for one in known), last)
    store.put(replace(durable, ended=rows), 0.0)
    store.close()
    tried = written(tmp_path, "4711").durable.tried
    assert [(one.cause, one.last_step, one.seconds) for one in tried] == [
        (cause, 25, 9.0),
        (cause, 25, 9.0),
        (None, None, math.inf),
    ]


def test_outages_of_a_killed_agent_are_kept(tmp_path: Path) -> None:
    """They come back on the clock of the next agent, which began later."""
    store = taken_up(tmp_path)
    assert store.durable.outages == ()
    outages = (Outage("retriever", "pod1", 10.0, 20.0), Outage("judge", HERE, 25.0))
    store.put(replace(store.durable, outages=outages), 30.0)
    store.close()
    left = written(tmp_path, "4711")
    following = taken_up(tmp_path, Succession(replaces_agent=True), left)
    closed, is_open = following.durable.outages
    assert (closed.service, closed.node, is_open.until) == ("retriever", "pod1", None)
    assert closed.since == pytest.approx(-20.0, abs=2.0)
    assert closed.until == pytest.approx(-10.0, abs=2.0)
    first, last = facts_of(left, "node-a").outages
    assert (first.service, first.node) == ("retriever", "pod1")
    assert (last.node, last.until) == ("node-a", None)
    assert first.until is not None
    assert seconds_between(first.since, first.until) == pytest.approx(10.0, abs=0.1)
    following.close()
