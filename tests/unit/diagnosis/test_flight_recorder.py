"""Dumps of torch's flight recorder: of four ranks of torch 2.14 by gloo, and hostile ones."""

from __future__ import annotations

import io
import os
import pickle
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.flight_recorder import (
    DumpError,
    GroupProgress,
    dump_files,
    not_entered,
    read_dump,
    recorder_environment,
)

DATA = Path(__file__).parents[2] / "data" / "stacks"


def real(rank: int) -> bytes:
    """Return the dump of a rank; rank 2 is in `compute_score`, the others in `all_reduce`."""
    return (DATA / f"flight-recorder-{rank}").read_bytes()


def made(rank: int, *names: str, **last: object) -> tuple[GroupProgress, ...]:
    """Return a rank's progress, by a dump with these collectives in NCCL's form."""
    entries: list[dict[str, Any]] = [
        {
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "profiling_name": f"nccl:{name}",
            "state": "completed",
            "is_p2p": False,
            "frames": [
                {"name": name, "filename": "/x/site-packages/torch/distributed/c.py", "line": 9},
                {"name": "step", "filename": "/app/train.py", "line": 30},
            ],
        }
        for number, name in enumerate(names, start=1)
    ]
    entries[-1] |= {"state": "started", **last}
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    dump = {"version": "2.9", "pg_config": config, "entries": entries}
    return read_dump(pickle.dumps(dump, protocol=2), rank)


def test_a_real_rank_that_did_not_enter() -> None:
    """Named with the collective, its line, and who waits there."""
    progress = [one for rank in (1, 2, 3) for one in read_dump(real(rank), rank)]
    assert [one.ranks for one in progress] == [(0, 1, 2, 3)] * 3
    assert not_entered(progress) == (
        (
            "rank 2 did not enter gloo:all_reduce (number 13 in `sync` (fsdp.py:20)) "
            "of process group 0 (default_pg), where ranks 1 and 3 wait"
        ),
    )


def test_nested_lists_that_share_each_other_take_no_time() -> None:
    """As text, 430 bytes of them are gigabytes."""
    shared: list[Any] = ["x" * 100]
    for _ in range(18):
        shared = [shared, shared]
    frames = [{"name": shared, "filename": shared, "line": shared}]
    names = {"process_group": (shared, shared), "profiling_name": shared, "pg_id": shared}
    dump = {"entries": [{"collective_seq_id": 1, "frames": frames, "state": shared, **names}]}
    data = pickle.dumps(dump, protocol=2)
    began = time.process_time()
    (group,) = read_dump(data, 0)
    assert time.process_time() - began < 0.2
    assert group.recent[0].where == "`` (:)"


@pytest.mark.parametrize("protocol", [2, 4])
def test_keys_are_texts_and_short_numbers(protocol: int) -> None:
    """The hash of nested tuples that share each other would hold all threads of the agent."""
    shared: tuple[Any, ...] = ("x",)
    for _ in range(18):
        shared = (shared, shared)
    for keys in ({shared: 1}, {"a": 1, (): 2}, {2**61: 1, "b": 2}, {1.5: 1}):
        with pytest.raises(DumpError, match="key"):
            read_dump(pickle.dumps({"entries": [keys]}, protocol=protocol), 0)
    plain = {"a": shared, 7: [shared, {"b": (1, {"c": shared})}], 70_000: "a"}
    assert read_dump(pickle.dumps({"entries": [plain]}, protocol=protocol), 0) == ()


def test_ranks_in_different_collectives() -> None:
    """The same number, but another collective: they wait for each other forever."""
    progress = [*made(0, "all_reduce"), *made(1, "broadcast"), *made(2, "all_reduce")]
    assert not_entered(progress) == (
        (
            "collective 1 of process group 0 (default_pg) differs between ranks: "
            "nccl:all_reduce: ranks 0 and 2; nccl:broadcast: rank 1"
        ),
    )


def test_all_ranks_in_one_collective() -> None:
    """Then it is the transport; ranks without a dump may be the cause, and nothing is said."""
    progress = [*made(0, "all_reduce"), *made(1, "all_reduce"), *made(2, "all_reduce")]
    assert not_entered(progress) == (
        (
            "all ranks of process group 0 (default_pg) are in nccl:all_reduce "
            "(number 1 in `step` (train.py:30)): the transport hangs"
        ),
    )
    assert not_entered(progress[:2]) == ()
    over = [*made(0, "barrier", state="completed"), *made(1, "barrier", state="completed")]
    assert not_entered([*over, *made(2, "barrier", state="completed")]) == ()
    assert not_entered(()) == ()


# --- hostile dumps --------------------------------------------------------------------------------


class Runs:
    """An object whose unpickling would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Return what would run."""
        return os.system, ("exit 3",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Runs(), protocol=2),
        pickle.dumps({"entries": [Runs()]}, protocol=4),
        pickle.dumps({"entries": 7}),
        pickle.dumps([1]),
        pickle.dumps({"entries": [b"\0" * 9, bytearray(9)]}, protocol=5),
        b"\x80\x02" + b"r" + struct.pack("<I", 0xFFFFFFF0) + b".",
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
        b"",
        b"\0" * 100,
        real(1)[:-9],
    ],
    ids=[
        *("a command", "a nested command", "no list", "no mapping", "bytes", "a huge memo"),
        *("a huge bytearray", "empty", "zeros", "cut"),
    ],
)
def test_what_is_no_dump_is_refused(data: bytes) -> None:
    """Nothing runs, and nothing large is allocated."""
    with pytest.raises(DumpError):
        read_dump(data, 0)


def test_a_dump_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read at all."""
    monkeypatch.setattr("agent.diagnosis.flight_recorder.LARGEST_DUMP", 100)
    with pytest.raises(DumpError, match="bytes"):
        read_dump(real(1), 1)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)


@given(PLAIN, PLAIN, st.lists(PLAIN, max_size=3))
def test_fields_of_any_form(entry: object, config: object, frames: list[object]) -> None:
    """Plain data of any form is read or refused."""
    fields = entry if isinstance(entry, dict) else {"process_group": entry, "state": entry}
    entries = [entry, {"collective_seq_id": 3, "frames": frames, **fields}]
    buffer = io.BytesIO()
    pickle.dump({"pg_config": config, "entries": entries}, buffer, protocol=2)
    try:
        not_entered(read_dump(buffer.getvalue(), 0))
    except DumpError:
        return


# --- its environment ------------------------------------------------------------------------------


def test_the_recorders_environment() -> None:
    """Both names of each variable; a value of the user's wins under either name."""
    chosen = recorder_environment("/logs/run/poda", {}, has_pipes=True)
    assert chosen["TORCH_FR_BUFFER_SIZE"] == chosen["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert dump_files(chosen, 3) == (
        "/logs/run/poda/flight-recorder-pipe-3.pipe",
        "/logs/run/poda/flight-recorder-3",
    )
    given_size = recorder_environment(
        "/logs", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, has_pipes=True
    )
    assert "TORCH_FR_BUFFER_SIZE" not in given_size
    assert dump_files({}, 3) is None
    assert dump_files(recorder_environment("/logs", {}, has_pipes=False), 3) is None
