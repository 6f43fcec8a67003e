"""Test and time an all-reduce over all GPUs of all nodes before the job.

Run it on every node at the same time, on one of them with `--host`: that node serves the store
through which the ranks connect. The ranks write their progress into the store, so that the host can
report a result even if a rank hangs. Needs only torch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OVER = "over"
_ENDED = "ended"
_GPU_BYTES = 256 << 20
_CPU_BYTES = 8 << 20
_ROUNDS = 3
_LONGEST_ERROR = 300
_EXIT_SECONDS = 5.0  # for ranks to exit after the measurement
_AFTER_A_FAILURE = 3.0  # seconds in which the other ranks can report a failure, too
_POLL_SECONDS = 0.1
_BEGAN = time.monotonic()  # the start: the import of torch counts towards the limit


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="all_reduce", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--address", required=True, help="address of the store")
    add("--port", type=int, required=True)
    add("--node", type=int, required=True, help="index of this node, from 0")
    gpus = "GPUs of each node, such as 8,8,4; 0,0: use CPUs"
    add("--gpus", type=lambda text: [*map(int, text.split(","))], required=True, help=gpus)
    add("--within", type=float, required=True, help="seconds in total")
    add("--out", required=True, help="JSON file for the result")
    add("--host", action="store_true", help="serve the store")
    add("--local-rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def processes(gpus: Sequence[int]) -> list[int]:
    """Return the ranks per node: one for each GPU, or one without GPUs."""
    if not any(gpus):
        return [1] * len(gpus)
    return [*gpus]


# --- a rank --------------------------------------------------------------------------------------


def run_rank(options: argparse.Namespace) -> None:
    """Connect all ranks, then run and time the all-reduce; write the progress to the store."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    counts = processes(options.gpus)
    by_gpu = any(options.gpus)
    local = options.local_rank
    rank = sum(counts[: options.node]) + local
    world = sum(counts)
    limit = timedelta(seconds=options.within)
    store: Any = dist.TCPStore(options.address, options.port, None, is_master=False, timeout=limit)
    size = _GPU_BYTES if by_gpu else _CPU_BYTES
    device = f"cuda:{local}" if by_gpu else "cpu"

    def measure() -> None:
        store.set(f"at/{rank}", "connecting to the other ranks")
        if by_gpu:
            torch.cuda.set_device(local)
        group = dist.PrefixStore("group", store)
        backend = "nccl" if by_gpu else "gloo"
        dist.init_process_group(backend, store=group, rank=rank, world_size=world, timeout=limit)

        # The first all-reduce also connects the ranks; to read its sum is to wait for the GPU.
        numbers = torch.ones(size // 4, dtype=torch.float32, device=device)
        store.set(f"at/{rank}", "the first all-reduce")
        dist.all_reduce(numbers)
        if abs(float(numbers[0]) - world) > 0:
            raise RuntimeError(f"a wrong sum: {float(numbers[0])}, not {world}")

        # The next ones are timed.
        store.set(f"at/{rank}", "the all-reduce")
        began = time.monotonic()
        for _ in range(_ROUNDS):
            dist.all_reduce(numbers)
        if by_gpu:
            torch.cuda.synchronize()
        seconds = (time.monotonic() - began) / _ROUNDS
        if rank == 0:
            store.set("all-reduce", json.dumps({"bytes": size, "seconds": seconds}))
        store.set(f"at/{rank}", "done")
        dist.destroy_process_group()

    # The last rank that ends, or one that failed, ends all.
    failure = ""
    try:
        measure()
    except Exception as error:
        failure = sentence(error)
        store.set(f"failed/{rank}", failure)
        raise
    finally:
        if store.add(_ENDED, 1) == world or failure:
            store.set(_OVER, "1")


# --- a node ---------------------------------------------------------------------------------------


def start_ranks(options: argparse.Namespace) -> list[subprocess.Popen[bytes]]:
    """Start the ranks of this node."""
    argv = [sys.executable, str(Path(__file__).absolute()), *sys.argv[1:]]
    count = processes(options.gpus)[options.node]
    return [subprocess.Popen([*argv, "--local-rank", str(local)]) for local in range(count)]


def ended_in_time(
    ranks: Sequence[subprocess.Popen[bytes]], seconds: float, is_over: Callable[[], bool]
) -> bool:
    """Wait until `is_over`; after a rank failed, the others get some time to report a reason."""
    until = _BEGAN + seconds
    while not is_over():
        if any(rank.poll() for rank in ranks):
            until = min(until, time.monotonic() + _AFTER_A_FAILURE)
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def end(ranks: Sequence[subprocess.Popen[bytes]], seconds: float) -> bool:
    """Give the ranks time to exit, then kill them; return whether all succeeded."""
    until = time.monotonic() + seconds
    for rank in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.wait(max(0.0, until - time.monotonic()))
        rank.kill()
    return not any(rank.wait() for rank in ranks)


def as_host(options: argparse.Namespace) -> dict[str, object]:
    """Serve the store until all ranks ended, one failed, or time is over; return the result."""
    dist: Any = importlib.import_module("torch.distributed")
    limit = timedelta(seconds=options.within)
    store = serve_store(dist, options.address, options.port, limit)
    ranks = start_ranks(options)
    in_time = ended_in_time(ranks, options.within, lambda: bool(_read(store, _OVER)))

    # What has each rank written to the store?
    world = range(sum(processes(options.gpus)))
    failures = {rank: _read(store, f"failed/{rank}") for rank in world}
    failed = [[rank, why] for rank, why in failures.items() if why]
    result = {
        "in_time": in_time,
        "at": [] if in_time else [_read(store, f"at/{rank}") for rank in world],
        "failed": failed,
        "all_reduce": json.loads(_read(store, "all-reduce") or "null"),
    }
    end(ranks, _EXIT_SECONDS if in_time and not failed else 0.0)
    return result


def serve_store(dist: Any, address: str, port: int, limit: timedelta) -> Any:  # noqa: ANN401 - torch's
    """Listen on one address only, since the store has no token: torch's own listens on all.

    torch 2.4 to 2.7 accept a socket of ours only without libuv.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    handle = socket.create_server((address, port), family=family).detach()
    settings: dict[str, object] = {
        "is_master": True,
        "timeout": limit,
        "wait_for_workers": False,
        "master_listen_fd": handle,
    }
    try:
        return dist.TCPStore(address, port, None, **settings)
    except NotImplementedError:
        return dist.TCPStore(address, port, None, **settings, use_libuv=False)


def _read(store: Any, key: str) -> str:  # noqa: ANN401 - same
    """Return a key's value if it is set, without waiting."""
    if not store.check([key]):
        return ""
    return str(store.get(key).decode())


def as_node(options: argparse.Namespace) -> bool:
    """Run this node's ranks; return whether all succeeded. The store's node has the result."""
    ranks = start_ranks(options)
    in_time = ended_in_time(ranks, options.within, lambda: all(rank.poll() == 0 for rank in ranks))
    return end(ranks, _EXIT_SECONDS if in_time else 0.0)


def sentence(error: Exception) -> str:
    """Return an error on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_ERROR]


def main(argv: Sequence[str]) -> int:
    """Run this node's part; the store's node writes the result file."""
    options = parsed(argv)
    if options.local_rank is not None:
        run_rank(options)
        return 0
    if not options.host:
        return 0 if as_node(options) else 1

    # The result is a file that is there as a whole, or not at all.
    try:
        result = as_host(options)
    except Exception as error:  # noqa: BLE001 - reported in the result file
        result = {"error": sentence(error)}
    part = Path(f"{options.out}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump(result, file)
    part.replace(options.out)
    os._exit(0)  # a thread of torch's store may still run


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
