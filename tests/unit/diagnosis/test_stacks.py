"""Stacks of real processes: the thread that counts, groups, suspects, and the sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.diagnosis.stacks import (
    Activity,
    Examination,
    Frame,
    ProcessStack,
    ThreadStack,
    busy_place,
    examination,
    group,
    parse_faulthandler,
    parse_py_spy,
    place_of,
    same_suspects,
    sentence,
)

DATA = Path(__file__).parents[2] / "data" / "stacks"
"""Dumps by `py-spy dump --json` 0.4.3: Ray 2.60, torch 2.14 by gloo, Python 3.11."""


def dumps(name: str) -> dict[str, tuple[ThreadStack, ...]]:
    """Return the stacks of each process of a file."""
    found = json.loads((DATA / f"{name}.json").read_text())
    return {role: parse_py_spy(json.dumps(threads)) for role, threads in found.items()}


def processes(name: str, **more: object) -> list[ProcessStack]:
    """Return the processes of a file, all on one node."""
    return [
        ProcessStack("poda", 100 + n, role, threads=threads, source="py-spy", **more)  # type: ignore[arg-type]  # any field
        for n, (role, threads) in enumerate(dumps(name).items())
    ]


def ranks(count: int, *at: int) -> list[ProcessStack]:
    """Return so many ranks in a collective; these are in `compute_score`."""
    by_torch = dumps("torch")
    waits, works = by_torch["rank 0"], by_torch["rank 1"]
    if place_of(ProcessStack("", 1, "", threads=waits)).function != "all_reduce":
        waits, works = works, waits
    return [
        ProcessStack(
            f"pod{rank // 8}",
            1000 + rank,
            f"rank {rank}",
            rank=rank,
            world=count,
            threads=works if rank in at else waits,
        )
        for rank in range(count)
    ]


# --- where a process is ---------------------------------------------------------------------------


def test_what_processes_of_ray_do() -> None:
    """A method counts wherever it runs; Ray's own threads and a thread that logs do not."""
    found = {one.role: place_of(one) for one in processes("ray")}
    texts = {
        role: (place.activity.name, place.function, place.where) for role, place in found.items()
    }
    assert texts == {
        "driver": ("WAITS_OUTSIDE", "rollout", "rollout.py:54"),
        "ray::Engine": ("IDLE", "", ""),
        "ray::Engine.generate": ("WORKS", "Engine.wait_for_batch", "rollout.py:18"),
        "ray::Async.generate": ("WAITS_INSIDE", "Async.generate", ""),
        "ray::Async.block": ("WORKS", "Async.block", "rollout.py:27"),
        "ray::Threaded.score": ("WORKS", "Threaded.score", "rollout.py:33"),
        "ray::stuck_task": ("WORKS", "stuck_task", "rollout.py:37"),
    }


def test_a_collective_is_named_with_its_caller() -> None:
    """The outermost function of torch.distributed names it, not what it calls itself."""
    places = {place_of(one).function: place_of(one) for one in ranks(4, 2)}
    assert places["all_reduce"].where == "fsdp.py:20"
    assert places["all_reduce"].activity is Activity.WAITS_OUTSIDE
    assert places["compute_score"].activity is Activity.WORKS


@pytest.mark.parametrize(
    ("state", "activity"), [("T", "STOPPED"), ("t", "STOPPED"), ("D", "BLOCKED"), ("R", "WORKS")]
)
def test_the_kernels_state_counts_more(state: str, activity: str) -> None:
    """A stopped process is stopped, whatever its stack shows."""
    (rank,) = [one for one in ranks(4, 2) if one.rank == 2]
    assert place_of(replace(rank, state=state)).activity.name == activity
    assert place_of(replace(rank, threads=(), state="T")).activity is Activity.STOPPED
    assert place_of(replace(rank, threads=())).activity is Activity.UNKNOWN


def test_where_a_service_is() -> None:
    """A thread that handles a request is named, not the loop that waits for requests."""
    loop = (
        Frame("select", "/usr/lib/python3.11/selectors.py", 415),
        Frame("serve_forever", "/usr/lib/python3.11/socketserver.py", 233),
        Frame("<module>", "/app/judge.py", 20),
    )
    handler = (
        Frame("wait", "/usr/lib/python3.11/threading.py", 629),
        Frame("score", "/app/judge.py", 9),
        Frame("handle", "/usr/lib/python3.11/http/server.py", 436),
    )
    idle = ProcessStack("poda", 1, "service judge", threads=(ThreadStack("MainThread", loop),))
    assert busy_place(idle) is None
    place = busy_place(replace(idle, threads=(*idle.threads, ThreadStack("", handler))))
    assert place is not None
    assert (place.function, place.where) == ("score", "judge.py:9")


def test_who_waits_for_work_is_no_suspect() -> None:
    """An idle engine of vLLM, and a consumer of a queue; the caller of a stuck function is one."""
    get = Frame("Queue.get", "/usr/lib/python3.11/queue.py", 171)
    engine = (
        get,
        Frame("EngineCoreProc._process_input_queue", "/x/site-packages/vllm/v1/engine/core.py", 9),
        Frame("EngineCoreProc.run_busy_loop", "/x/site-packages/vllm/v1/engine/core.py", 5),
    )
    consumer = (get, Frame("consume", "/app/train.py", 7))
    stuck = (Frame("step", "/x/site-packages/vllm/v1/engine/core.py", 70), *engine[2:])

    def place(frames: tuple[Frame, ...]) -> tuple[str, str, str]:
        threads = (ThreadStack("MainThread", frames),)
        found = place_of(ProcessStack("poda", 1, "child of driver", threads=threads))
        return found.activity.name, found.function, found.waits_for

    worker = (
        Frame("MessageQueue.acquire_read", "/x/site-packages/vllm/distributed/shm.py", 30),
        Frame("WorkerProc.worker_busy_loop", "/x/site-packages/vllm/v1/executor/mp.py", 8),
    )
    assert place(worker) == ("WAITS_OUTSIDE", "MessageQueue.acquire_read", "a queue")
    assert place(engine) == ("IDLE", "", "")
    assert place(consumer) == ("WAITS_OUTSIDE", "consume", "a queue")
    assert place(stuck) == ("WORKS", "step", "")


# --- the sentence ---------------------------------------------------------------------------------


def test_the_rank_that_all_others_wait_for() -> None:
    """The smallest group is the suspect, with node, process, function and since when."""
    found = examination(7.0, ranks(24, 17), "02:12")
    assert found.sentence == (
        "23 of 24 ranks wait in `all_reduce` (fsdp.py:20); "
        "rank 17 on pod2 is in `compute_score` (fsdp.py:15) since 02:12"
    )
    assert [(one.node, one.process) for one in found.suspects] == [("pod2", "rank 17 (pid 1017)")]
    assert found.suspected_nodes == ("pod2",)


def test_no_node_stands_out_where_each_has_a_suspect() -> None:
    """All ranks wait in the same place: whoever they wait for is not among them."""
    found = examination(7.0, ranks(64))
    assert len({suspect.node for suspect in found.suspects}) < 8  # not all are kept
    assert found.suspected_nodes == ()


def test_the_cause_of_a_hang_has_neither_node_nor_time() -> None:
    """Only the suspects' function and file, so that another attempt's can be compared."""
    first = examination(7.0, ranks(24, 17), "02:12")
    moved = [replace(one, node="abcx") for one in ranks(24, 3)]
    later = examination(99.0, moved, "09:47")
    assert first.sentence != later.sentence
    assert first.cause_key == later.cause_key == "compute_score fsdp.py"


def test_a_stopped_rank() -> None:
    """It is the suspect, though it is in the collective like the others."""
    stacks = [replace(one, state="T") if one.rank == 3 else one for one in ranks(4)]
    assert sentence(group(stacks)) == (
        "rank 0 on pod0, rank 1 on pod0 and rank 2 on pod0 wait in `all_reduce` (fsdp.py:20); "
        "rank 3 on pod0 is stopped by a signal in `all_reduce` (fsdp.py:20)"
    )


def test_a_rank_that_has_no_process() -> None:
    """All wait for one that is not there."""
    stacks = [one for one in ranks(24) if one.rank != 5]
    assert sentence(group(stacks)) == (
        "23 of 23 ranks wait in `all_reduce` (fsdp.py:20); rank 5 of 24 has no process"
    )
    few = [one for one in ranks(24) if one.rank and one.rank > 20]
    assert sentence(group(few)).endswith("ranks 0, 1, 2 and 18 more of 24 have no process")


def test_a_deadlock_of_two_locks() -> None:
    """The main thread only joins: the other threads are named, too."""
    assert sentence(group(processes("locks"))) == (
        "driver on poda is in `main` (locks.py:16) "
        "(other threads: `second` (locks.py:11) and `first` (locks.py:6))"
    )


def test_an_engine_that_hangs_while_it_logs() -> None:
    """The driver waits for it; an idle engine is no suspect."""
    roles = {"driver", "ray::Engine", "ray::Engine.generate"}
    stacks = [one for one in processes("ray") if one.role in roles]
    assert sentence(group(stacks), "02:12") == (
        "driver on poda waits for a result of Ray in `rollout` (rollout.py:54); "
        "ray::Engine.generate on poda is in `Engine.wait_for_batch` (rollout.py:18) "
        "(other threads: `Engine.log_metrics` (rollout.py:16)) since 02:12"
    )


def test_a_data_loader_on_a_frozen_disk() -> None:
    """Its process is the suspect; the rank waits for it, and the other ranks for that rank."""
    stacks = [
        replace(one, rank=None if "child" in one.role else n)
        for n, one in enumerate(processes("loader"))
    ]
    assert sentence(group(stacks)) == (
        "rank 0 on poda, rank 1 on poda and rank 3 on poda wait in `all_reduce` (fsdp.py:20); "
        "rank 2 on poda waits for its data loader in `train` (fsdp.py:25); "
        "child of rank 2 on poda is in `Set.read_from_disk` (fsdp.py:13)"
    )
    idle = [one for one in stacks if one.role == "child of rank 2"]
    main = idle[0].frames
    waits = replace(idle[0], threads=(ThreadStack("MainThread", main[4:]),))
    assert place_of(waits).activity is Activity.IDLE


def test_processes_without_anything_to_say() -> None:
    """No process, only idle ones, or none that could be read."""
    idle = [one for one in processes("ray") if one.role == "ray::Engine"]
    assert sentence(()) == "no process of the job was found"
    assert sentence(group(idle)) == (
        "all processes of the job (1) wait for work: no task is running; look at the driver and at "
        "unplaced actors"
    )
    unread = [ProcessStack("poda", 5, "driver", source="py-spy is not installed")]
    assert sentence(group(unread)) == (
        "driver on poda has no readable stack (py-spy is not installed)"
    )
    assert examination(0.0, idle).suspects == ()
    crowd = [replace(one, threads=(), source="no py-spy") for one in ranks(24)]
    assert sentence(group(crowd)) == "24 of 24 ranks have no readable stack (no py-spy)"


# --- two examinations -----------------------------------------------------------------------------


def looked(at: float, *stacks: ProcessStack) -> Examination:
    """Return an examination of these processes."""
    return examination(at, stacks)


def test_the_same_suspects() -> None:
    """In the same frames, or without CPU time in between."""
    first = looked(0.0, *ranks(4, 2))
    assert same_suspects(first, looked(60.0, *ranks(4, 2)))
    assert not same_suspects(first, looked(60.0, *ranks(4, 1)))
    assert not same_suspects(first, looked(60.0, *ranks(4)))
    assert not same_suspects(looked(0.0), looked(60.0))

    def moved(cpu_seconds: float) -> Examination:
        elsewhere = (ThreadStack("MainThread", (Frame("poll", "/app/fsdp.py", 99),)),)
        stacks = [
            replace(one, threads=elsewhere, cpu_seconds=cpu_seconds) if one.rank == 2 else one
            for one in ranks(4, 2)
        ]
        return looked(60.0, *stacks)

    assert same_suspects(first, moved(1.0))
    assert not same_suspects(first, moved(30.0))
    unread = [replace(one, threads=(), source="no py-spy") for one in ranks(4, 2)]
    assert same_suspects(looked(0.0, *unread), looked(60.0, *unread))
    busy = [replace(one, cpu_seconds=50.0) for one in unread]
    assert not same_suspects(looked(0.0, *unread), looked(60.0, *busy))
    other = [replace(one, pid=one.pid + 500) for one in ranks(4, 2)]
    assert not same_suspects(first, looked(60.0, *other))


# --- readers --------------------------------------------------------------------------------------

BY_FAULTHANDLER = """\
Thread 0x00007f1489d296c0 (most recent call first):
  File "/app/train.py", line 12 in load
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007f148dd296c0 [Thread-2 (first)] (most recent call first):
  File "/app/train.py", line ??? in first

Current thread 0x00007f14a1d29740 (most recent call first):
  File "/app/reward.py", line 44 in compute_score
  File "/app/train.py", line 30 in <module>
"""


def test_faulthandlers_text() -> None:
    """The main thread is the one that runs a module; names come with Python 3.14."""
    threads = parse_faulthandler(f"noise\n{BY_FAULTHANDLER}")
    assert [one.name for one in threads] == ["", "Thread-2 (first)", "MainThread"]
    place = place_of(ProcessStack("poda", 1, "driver", threads=threads))
    assert (place.function, place.where) == ("compute_score", "reward.py:44")
    assert parse_faulthandler("") == ()


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """Readers raise only ValueError."""
    parse_faulthandler(text)
    with pytest.raises(ValueError, match=r".*"):
        parse_py_spy(f"x{text}")


def test_a_deep_recursion_is_cut() -> None:
    """Many frames and threads cost a limited size."""
    frame = {"name": "f" * 999, "filename": "/app/x.py", "line": 1}
    many = [{"thread_name": "MainThread", "frames": [frame] * 70}] * 70
    threads = parse_py_spy(json.dumps(many))
    assert len(threads) == 64
    assert len(threads[0].frames) == 64
    assert len(threads[0].frames[0].function) == 120


def test_a_line_within_one_function_shows_who_is_elsewhere() -> None:
    """Two processes are at one line of a function, the third is at the next one."""
    stacks = [
        ProcessStack(
            "poda",
            pid,
            f"rank {pid}",
            threads=(ThreadStack("main", (Frame("wait_for", "/w/job.py", line),)),),
            source="py-spy",
        )
        for pid, line in ((1, 15), (2, 15), (3, 16))
    ]
    found = group(stacks)
    assert [len(one.processes) for one in found] == [1, 2]
    text = sentence(found)
    assert "rank 3 on poda is in `wait_for` (job.py:16)" in text
    assert "rank 1 on poda and rank 2 on poda are in `wait_for` (job.py:15)" in text
    apart = [*stacks[:2], replace(stacks[2], threads=())]
    assert [len(one.processes) for one in group([*stacks[1:]])] == [2]  # no line has most of them
    assert [len(one.processes) for one in group(apart)] == [2, 1]
