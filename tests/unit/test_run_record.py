"""run.json: a run that goes on, one that is over, and whatever else may lie there."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base.errors import PreflightError
from agent.base.outcome import Kind, Outcome
from agent.boot.run_keeper import RunKeeper
from agent.record.files import LockHolder, iso_time
from agent.record.node_record import own_record
from agent.record.run_choice import ChosenRun, FoundRun, choose_run, why_not_resumed
from agent.record.run_record import (
    RUN_FILE,
    AttemptRecord,
    NoRecord,
    RunRecord,
    RunState,
    fingerprint,
    next_epoch,
)
from agent.settings.redact import Redactor
from unit.disks import fill_up, full_disk, needs_mount

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = "2025-01-01T00:00:00.000Z"
RECORD = RunRecord(
    *("4711", "f" * 16, 1_700_000_000_000, "pod0", RunState.RUNNING), ranks=("pod1", "pod2")
)
RECORDS = st.builds(
    RunRecord,
    st.text(),
    st.text(),
    st.integers(),
    st.text(),
    st.sampled_from(RunState),
    st.lists(
        st.builds(
            AttemptRecord,
            st.integers(),
            st.text(),
            st.text(),
            st.none() | st.text(),
            st.text(),
            st.none() | st.integers(),
            underway=st.dictionaries(st.text(), st.integers() | st.text()),
        )
    ).map(tuple),
    ending=st.none() | st.builds(Outcome, st.sampled_from(Kind), st.integers(0, 255), st.text()),
)


def test_a_runs_life() -> None:
    """Attempts begin and end, each once, and a run that has ended says so."""
    record = RECORD.begin_attempt(1, "4711-1", NOW).end_attempt(NOW, "a node was lost", None)
    record = record.end_attempt(NOW, "said again", 3).begin_attempt(2, "4711-2", NOW)
    assert [(a.number, a.submission_id, a.end, a.reason) for a in record.attempts] == [
        (1, "4711-1", NOW, "a node was lost"),
        (2, "4711-2", None, ""),
    ]
    assert record.state is RunState.RUNNING
    assert record.end_attempt(NOW, "done", 0).as_ended().state is RunState.ENDED
    assert RECORD.end_attempt(NOW, "none began", 1) == RECORD


@given(RECORDS)
def test_a_record_survives_the_disk(record: RunRecord) -> None:
    """What is read is what was written."""
    assert RunRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_a_record_is_written_whole(tmp_path: Path) -> None:
    """It is read back, and leaves nothing beside it."""
    assert RECORD.write(tmp_path / RUN_FILE) is None
    assert RunRecord.read(tmp_path / RUN_FILE) == RECORD
    assert [path.name for path in tmp_path.iterdir()] == [RUN_FILE]


GOOD = RECORD.begin_attempt(1, "4711-1", NOW).to_dict()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "its version is 2, not 1"),
        ({"version": True}, "its version is True"),
        ({"version": None}, "its version is None"),
        ({"epoch": "1"}, "- at `$.epoch`"),
        ({"epoch": True}, "- at `$.epoch`"),
        ({"run_id": 4711}, "- at `$.run_id`"),
        ({"state": "paused"}, "- at `$.state`"),
        ({"attempts": {}}, "- at `$.attempts`"),
        ({"attempts": [1]}, "- at `$.attempts[0]`"),
        ({"attempts": [{}]}, "- at `$.attempts[0]`"),
        ({"ending": {}}, "- at `$.ending`"),
        ({"ending": 7}, "it is no record of a run"),
    ],
)
def test_what_is_no_record(tmp_path: Path, change: dict[str, object], words: str) -> None:
    """A foreign or newer file is no record, with the reason; it is never an exception."""
    (tmp_path / RUN_FILE).write_text(json.dumps({**GOOD, **change}))
    found = RunRecord.read(tmp_path / RUN_FILE)
    assert isinstance(found, NoRecord)
    assert words in found.why
    assert not found.is_missing


@pytest.mark.parametrize(
    "data", [b"", b"{", b"null", b"[]", b'"x"', b"\xff", b"[" * 100_000, b" " * (5 << 20)]
)
def test_a_broken_file_is_no_record(tmp_path: Path, data: bytes) -> None:
    """Whatever bytes lie there."""
    (tmp_path / RUN_FILE).write_bytes(data)
    assert isinstance(RunRecord.read(tmp_path / RUN_FILE), NoRecord)


def test_what_is_no_file_is_no_record(tmp_path: Path) -> None:
    """A folder, or a pipe to which nobody writes; and where nothing is, the place is free."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, free in {"folder": False, "pipe": False, "nothing": True}.items():
        found = RunRecord.read(tmp_path / name)
        assert isinstance(found, NoRecord)
        assert found.is_missing is free


@needs_mount
def test_a_full_disk_keeps_the_former_record(tmp_path: Path) -> None:
    """What was there stays whole, the reason is returned, and nothing is left beside it."""
    with full_disk(tmp_path / "disk", "size=64k") as disk:
        assert RECORD.write(disk / RUN_FILE) is None
        fill_up(disk)
        error = RECORD.begin_attempt(1, "x" * 5000, NOW).write(disk / RUN_FILE)
        assert error is not None
        assert error.strerror == "No space left on device"
        assert RunRecord.read(disk / RUN_FILE) == RECORD
        assert sorted(path.name for path in disk.iterdir()) == ["fill", RUN_FILE]


def test_a_reader_never_sees_half_of_it(tmp_path: Path) -> None:
    """Two writers and a reader at the same file: what is read is always whole."""
    path = tmp_path / RUN_FILE
    long = RECORD.begin_attempt(1, "x" * 50_000, NOW)
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


@given(st.none() | st.integers(), st.integers(0))
def test_epochs_are_ordered(previous: int | None, now: int) -> None:
    """A later cluster has a higher epoch, wherever the clock went."""
    epoch = next_epoch(previous, now)
    assert epoch >= now
    assert previous is None or epoch > previous


def test_times_are_utc() -> None:
    """Times read as the contract has them."""
    assert iso_time(0.5) == "1970-01-01T00:00:00.500Z"


# --- what makes a run this run -----------------------------------------------------------------


def fingerprint_of(*argv: str, secrets: tuple[str, ...] = (), **settings: str) -> str:
    """Hash a command and settings, with these secrets known."""
    return fingerprint(argv, "ray", settings, Redactor(secrets).clean)


def test_the_fingerprint_tells_jobs_apart() -> None:
    """Command, launcher and recipe settings count, and so does where a word ends."""
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


def test_a_new_token_makes_no_new_run() -> None:
    """Secrets are masked before: known ones anywhere, others by the name that they stand behind."""
    one = fingerprint_of("run", "token-number-one", secrets=("token-number-one",))
    assert one == fingerprint_of("run", "token-number-two", secrets=("token-number-two",))
    for before, after in [
        (("--wandb-api-key", "abc"), ("--wandb-api-key", "def")),
        (("--auth.token=abc",), ("--auth.token=def",)),
        (("HF_TOKEN=abc", "x"), ("HF_TOKEN=def", "x")),
    ]:
        assert fingerprint_of(*before) == fingerprint_of(*after)
    assert fingerprint_of(X_API_KEY="abc") == fingerprint_of(X_API_KEY="def")
    assert fingerprint_of("--lr", "1") != fingerprint_of("--lr", "2")
    assert fingerprint_of("--api-key", "--lr", "1") != fingerprint_of("--api-key", "--lr", "2")


# --- which run this is -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "node", "why"),
    [
        (RECORD, "", ""),
        (RECORD, "pod0", ""),
        (replace(RECORD, state=RunState.BOOTING), "", ""),
        (replace(RECORD, head=""), "pod1", ""),
        (RECORD.as_ended(), "", "it has ended"),
        (replace(RECORD, fingerprint="0"), "", "it is of another job, or other settings"),
        (RECORD, "pod1", "its head is pod0"),
    ],
)
def test_what_goes_on(record: RunRecord, node: str, why: str) -> None:
    """A run goes on if it has not ended and is of the same job."""
    assert why_not_resumed(record, RECORD.fingerprint, node) == why


MISSING = NoRecord("there is none", is_missing=True)


@pytest.mark.parametrize(
    ("found", "claim", "is_active", "why"),
    [
        (RECORD, LockHolder.OURS, False, ""),
        (RECORD, LockHolder.OURS, True, ""),
        (RECORD, LockHolder.UNKNOWN, False, ""),
        (RECORD, LockHolder.UNKNOWN, True, "its head pod0 is active"),
        (RECORD, LockHolder.THEIRS, False, "another head has it"),
        (RECORD.as_ended(), LockHolder.OURS, False, "it has ended"),
        (MISSING, LockHolder.OURS, False, ""),
        (MISSING, LockHolder.UNKNOWN, False, ""),
        (MISSING, LockHolder.THEIRS, False, "another head has it"),
        (NoRecord("it is broken"), LockHolder.OURS, False, "it is broken"),
    ],
)
def test_what_a_candidate_is(
    found: RunRecord | NoRecord,
    claim: LockHolder,
    is_active: bool,  # noqa: FBT001 - a table's column
    why: str,
) -> None:
    """A head's lock decides; without locks an active head does; a broken record is left alone."""
    assert FoundRun(found, claim, is_active).why_taken(RECORD.fingerprint) == why


def new_ids() -> Callable[[], str]:
    """Return what names new runs: new-1, new-2 and so on."""
    number = iter(range(1, 100))
    return lambda: f"new-{next(number)}"


def choose(root: Path, platform: str | None = None, node: str = "pod0") -> ChosenRun:
    """Choose a run for RECORD's job."""
    return choose_run(root, platform, RECORD.fingerprint, new_ids(), node=node)


def leave(root: Path, record: RunRecord) -> None:
    """Leave a run behind, as the latest."""
    folder = root / record.run_id
    folder.mkdir(parents=True, exist_ok=True)
    record.write(folder / RUN_FILE)
    (root / "latest").unlink(missing_ok=True)
    (root / "latest").symlink_to(record.run_id)


def test_the_first_run(tmp_path: Path) -> None:
    """Where nothing is, the platform's id or a new one."""
    assert choose(tmp_path / "a", "4711").run_id == "4711"
    assert choose(tmp_path / "b").run_id == "new-1"
    assert choose(tmp_path / "c").before is None


def test_a_run_goes_on(tmp_path: Path) -> None:
    """By the platform's id, or as the latest."""
    leave(tmp_path, RECORD)
    for platform in ("4711", None):
        chosen = choose(tmp_path, platform)
        assert (chosen.run_id, chosen.before) == ("4711", RECORD)
        assert chosen.lock is not None
        chosen.lock.release()


def test_a_platforms_run_that_is_over_has_numbers(tmp_path: Path) -> None:
    """The next free id, or a numbered run that goes on; why not the others is told."""
    leave(tmp_path, RECORD.as_ended())
    leave(tmp_path, replace(RECORD, run_id="4711-2", fingerprint="other"))
    (tmp_path / "4711-3").mkdir()
    (tmp_path / "4711-3" / RUN_FILE).write_text("{")
    chosen = choose(tmp_path, "4711")
    assert chosen.run_id == "4711-4"
    assert chosen.skipped[:2] == (
        "run 4711 is not resumed: it has ended",
        "run 4711-2 is not resumed: it is of another job, or other settings",
    )
    assert "run 4711-3 is not resumed: it is broken" in chosen.skipped[2]
    assert chosen.lock is not None
    chosen.lock.release()
    leave(tmp_path, replace(RECORD, run_id="4711-4"))
    assert choose(tmp_path, "4711").before == replace(RECORD, run_id="4711-4")


@pytest.mark.parametrize(
    "record",
    [RECORD.as_ended(), replace(RECORD, fingerprint="other"), replace(RECORD, head="pod7")],
)
def test_a_latest_run_that_does_not_go_on(tmp_path: Path, record: RunRecord) -> None:
    """It is over, of another job, or another cluster's on the same disk: a new run."""
    leave(tmp_path, record)
    chosen = choose(tmp_path)
    assert (chosen.run_id, chosen.before) == ("new-1", None)
    assert len(chosen.skipped) == 1


@pytest.mark.parametrize("target", ["../elsewhere", "/etc", "gone", ".", "", "a/b"])
def test_latest_leads_nowhere_else(tmp_path: Path, target: str) -> None:
    """A link out of the log dir, or to nothing, is no run, and nothing is made there."""
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
def test_heads_at_once_have_runs_of_their_own(tmp_path: Path, platform: str | None) -> None:
    """Heads that choose in the same instant never share a run; one goes on, the others begin."""
    leave(tmp_path, RECORD)
    chosen: list[ChosenRun] = []
    new = new_ids()

    def head() -> None:
        chosen.append(choose_run(tmp_path, platform, RECORD.fingerprint, new))

    heads = [threading.Thread(target=head) for _ in range(8)]
    for one in heads:
        one.start()
    for one in heads:
        one.join()
    assert len({c.run_id for c in chosen}) == 8
    assert [c.before for c in chosen].count(RECORD) == 1


def test_without_locks_a_head_that_works_keeps_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk without locks it is the head's own record that tells, while it is fresh."""
    monkeypatch.setattr("agent.record.files.FileLock.take", lambda _: LockHolder.UNKNOWN)
    leave(tmp_path, RECORD)
    node = tmp_path / "4711" / "pod0" / "node.json"
    node.parent.mkdir()
    mine = own_record("pod0", "4711")
    far = replace(mine, place=replace(mine.place, boot_id="another machine's"))
    far.write(node)
    assert choose(tmp_path, "4711").run_id == "4711-2"
    replace(far, ended=True).write(node)
    assert choose(tmp_path, "4711").run_id == "4711"
    far.write(node)
    os.utime(node, (1, 1))
    assert choose(tmp_path, "4711").run_id == "4711"


def test_an_unwritable_root_is_left_to_the_folder(tmp_path: Path) -> None:
    """A log dir that cannot be made still names a run: the run folder says it, with a remedy."""
    (tmp_path / "file").write_text("")
    assert choose(tmp_path / "file" / "logs", "4711").run_id == "4711"
    assert choose(tmp_path / "file" / "logs").run_id == "new-1"


def test_a_log_dir_where_everything_is_taken(tmp_path: Path) -> None:
    """It ends with 78 and a reason, rather than never."""
    leave(tmp_path, replace(RECORD.as_ended(), run_id="same"))
    (tmp_path / "latest").unlink()
    with pytest.raises(PreflightError, match="is free") as caught:
        choose_run(tmp_path, None, RECORD.fingerprint, lambda: "same")
    assert caught.value.culprit == "AGENT_LOG_DIR"


def kept(root: Path, *, job_survives: bool) -> RunKeeper:
    """Return what a head knows that was started anew, after one that was killed at its job."""
    before = RECORD.begin_attempt(1, "4711-1", NOW)
    keeper = RunKeeper(root, "f" * 16, ChosenRun("4711", before), job_survives=job_survives)
    keeper.close()
    return keeper


def test_a_job_that_died_with_its_head_is_tried_again(tmp_path: Path) -> None:
    """The attempt that a killed head left open is lost, and the next has a number of its own."""
    keeper = kept(tmp_path, job_survives=False)
    assert keeper.next_attempt == 2
    assert [(one.number, one.reason) for one in keeper.attempts] == [(1, "its head was lost")]


def test_a_job_that_outlived_its_head_is_followed_again(tmp_path: Path) -> None:
    """On a Ray that others keep the job runs on: no second one is started beside it."""
    keeper = kept(tmp_path, job_survives=True)
    assert keeper.next_attempt == 1
    keeper.record_submission(1, "4711-1")
    assert [(one.number, one.start, one.end) for one in keeper.attempts] == [(1, NOW, None)]
