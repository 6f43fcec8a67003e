"""One all-reduce over all GPUs of all nodes, before a job needs it: does it work, and how fast.

Run on every node at the same time. `--host` on one of them, and there alone, keeps the store by
which all meet and writes what came of it, whoever hangs: the ranks write into the store how far
they have come. Needs torch and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OVER, _ENDED = "over", "ended"
_GPU_BYTES, _CPU_BYTES = 256 << 20, 8 << 20
_ROUNDS = 3
_LONGEST_WORDS = 300
_PATIENCE = 5.0
"""For ranks to end by themselves once all is measured."""
_AFTER_A_FAILURE = 3.0
_BEGAN = time.monotonic()
"""Torch takes seconds to import, which count."""


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    made = argparse.ArgumentParser(prog="all_reduce", description=__doc__, allow_abbrev=False)
    made.add_argument("--address", required=True, help="where the store is")
    made.add_argument("--port", type=int, required=True)
    made.add_argument("--node", type=int, required=True, help="which of the nodes this is, from 0")
    made.add_argument("--gpus", required=True, help="each node's, such as 8,8,4; 0,0: by CPU")
    made.add_argument("--within", type=float, required=True, help="seconds for all of it")
    made.add_argument("--out", required=True, help="the file for what came of it, as JSON")
    made.add_argument("--host", action="store_true", help="keep the store here")
    made.add_argument("--local-rank", type=int, help=argparse.SUPPRESS)
    return made.parse_args(argv)


def processes(gpus: Sequence[int]) -> list[int]:
    """Return how many ranks each node has: one for each GPU, or one a node where there are none."""
    return [*gpus] if any(gpus) else [1] * len(gpus)


def first_ranks(counts: Sequence[int]) -> list[int | None]:
    """Return each node's first rank; None for one that has no share."""
    return [sum(counts[:node]) if count else None for node, count in enumerate(counts)]


def neighbours(nodes: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return a ring's pairs, in groups of which no node is in two pairs: a group goes at once."""
    count = len(nodes)
    if count < 2:
        return []
    pairs = [(nodes[n], nodes[(n + 1) % count]) for n in range(count if count > 2 else 1)]
    groups = [pairs[0::2], pairs[1::2]]
    if count > 2 and count % 2:  # the pair that closes an odd ring meets the first one's node
        groups = [pairs[0 : count - 1 : 2], pairs[1::2], [pairs[-1]]]
    return [group for group in groups if group]


# --- a rank --------------------------------------------------------------------------------------


class Rank:
    """One rank, and the store into which it writes how far it is."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._dist: Any = importlib.import_module("torch.distributed")
        gpus = numbers_in(options.gpus)
        self._counts = processes(gpus)
        self._by_gpu, self._local = any(gpus), options.local_rank
        firsts = first_ranks(self._counts)
        first = firsts[options.node]
        assert first is not None  # noqa: S101 - a node without a share starts no rank
        self._rank, self._world = first + self._local, sum(self._counts)
        self._firsts = [one for one in firsts if one is not None]
        self._limit = timedelta(seconds=options.within)
        self.store: Any = self._dist.TCPStore(
            options.address, options.port, None, is_master=False, timeout=self._limit
        )

    def say(self, what: str) -> None:
        """Write how far this rank is."""
        self.store.set(f"at/{self._rank}", what)

    def end(self, failure: str = "") -> None:
        """Write that it has ended; the last one, or one that failed, ends it for all."""
        if failure:
            self.store.set(f"failed/{self._rank}", failure[:_LONGEST_WORDS])
        if self.store.add(_ENDED, 1) == self._world or failure:
            self.store.set(_OVER, "1")

    def run(self) -> None:
        """Meet the others, sum over all, then send to and fro between neighbours."""
        torch, dist = self._torch, self._dist
        self.say("meeting the others")
        device = "cpu"
        if self._by_gpu:
            torch.cuda.set_device(self._local)
            device = f"cuda:{self._local}"
        dist.init_process_group(
            "nccl" if self._by_gpu else "gloo",
            store=dist.PrefixStore("group", self.store),
            rank=self._rank,
            world_size=self._world,
            timeout=self._limit,
        )
        size = _GPU_BYTES if self._by_gpu else _CPU_BYTES
        numbers = torch.ones(size // 4, dtype=torch.float32, device=device)
        self.say("the first all-reduce")
        dist.all_reduce(numbers)  # which connects
        self._wait()
        if abs(float(numbers[0]) - self._world) > 0:
            raise RuntimeError(f"a wrong sum: {float(numbers[0])}, not {self._world}")
        self.say("the all-reduce")
        began = time.monotonic()
        for _ in range(_ROUNDS):
            dist.all_reduce(numbers)
        self._wait()
        seconds = (time.monotonic() - began) / _ROUNDS
        if self._rank == 0:
            self.store.set("all-reduce", json.dumps({"bytes": size, "seconds": seconds}))
        self._ring(numbers)
        self.say("done")
        dist.destroy_process_group()

    def _ring(self, numbers: Any) -> None:  # noqa: ANN401 - a tensor
        """Send to and fro between the first ranks of neighbouring nodes."""
        for group in neighbours(self._firsts):
            self._dist.barrier()
            for one, other in group:
                if self._rank in (one, other):
                    self._pair(numbers, one, other)
        self._dist.barrier()

    def _pair(self, numbers: Any, one: int, other: int) -> None:  # noqa: ANN401 - same
        """Measure both ways between two ranks; the slower one counts."""
        self.say(f"the way between ranks {one} and {other}")
        self._round(numbers[:1024], one, other)  # which connects
        seconds = max(self._round(numbers, one, other), self._round(numbers, other, one))
        if self._rank == one:
            bits = numbers.numel() * 4 * 8
            nodes = [self._node_of(one), self._node_of(other)]
            self.store.set(f"way/{one}", json.dumps([*nodes, bits / seconds]))

    def _round(self, numbers: Any, source: int, target: int) -> float:  # noqa: ANN401 - same
        """Send numbers, and one back; return how long the sender waited."""
        self._wait()
        began = time.monotonic()
        if self._rank == source:
            self._dist.send(numbers, target)
            self._dist.recv(numbers[:1], target)
        else:
            self._dist.recv(numbers, source)
            self._dist.send(numbers[:1], source)
        self._wait()
        return time.monotonic() - began

    def _wait(self) -> None:
        if self._by_gpu:
            self._torch.cuda.synchronize()

    def _node_of(self, rank: int) -> int:
        ranks = 0
        for node, count in enumerate(self._counts):
            ranks += count
            if rank < ranks:
                return node
        raise IndexError(rank)


def as_rank(options: argparse.Namespace) -> int:
    """Be one rank."""
    rank = Rank(options)
    try:
        rank.run()
    except Exception as error:
        rank.end(" ".join(f"{type(error).__name__}: {error}".split()))
        raise
    rank.end()
    return 0


# --- a node ---------------------------------------------------------------------------------------


class Ranks:
    """This node's ranks, and their ends as they come."""

    def __init__(self, options: argparse.Namespace) -> None:
        counts = processes(numbers_in(options.gpus))
        argv = [sys.executable, str(Path(__file__).absolute()), *sys.argv[1:]]
        self._ranks = [
            subprocess.Popen([*argv, "--local-rank", str(local)])
            for local in range(counts[options.node])
        ]
        self.ends: queue.Queue[int | None] = queue.Queue()
        """The code of each that ended; None where somebody else has word of the end of it all."""
        for rank in self._ranks:
            in_thread(lambda rank=rank: self.ends.put(rank.wait()))  # type: ignore[misc]  # bound now

    def wait(self, until: float) -> bool:
        """Wait for the end of it all; say whether it came in time.

        Where one rank has failed the word of why is soon to come, or never.
        """
        left = len(self._ranks)
        while time.monotonic() < until:
            try:
                code = self.ends.get(timeout=until - time.monotonic())
            except queue.Empty:
                return False
            if code is None:
                return True
            left -= 1
            if code:
                until = min(until, time.monotonic() + _AFTER_A_FAILURE)
            elif not left:
                return True
        return False

    def end(self, patience: float) -> list[int]:
        """Let them end by themselves for a while, then end them; return their codes."""
        until = time.monotonic() + patience
        for rank in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(max(0.0, until - time.monotonic()))
            rank.kill()
        return [rank.wait() for rank in self._ranks]


def in_thread(work: Callable[[], object]) -> None:
    """Do something that may never end beside the rest."""
    threading.Thread(target=work, daemon=True).start()


def as_host(options: argparse.Namespace) -> dict[str, object]:
    """Keep the store until all have ended, one has failed, or time is over; return what came."""
    dist: Any = importlib.import_module("torch.distributed")
    limit = timedelta(seconds=options.within)
    until = _BEGAN + options.within
    place = (options.address, options.port, None)
    store = kept_store(dist, options.address, options.port, limit)
    look = dist.TCPStore(*place, is_master=False, timeout=limit)  # the other one is busy waiting
    ranks = Ranks(options)

    def wait() -> None:
        with contextlib.suppress(Exception):  # that time is over is told by the clock
            store.wait([_OVER], limit)
            ranks.ends.put(None)

    in_thread(wait)
    counts = processes(numbers_in(options.gpus))
    in_time = ranks.wait(until) and _met(look, until)
    world = range(sum(counts))
    told: dict[str, object] = {
        "in_time": in_time,
        "at": [] if in_time else [_read(look, f"at/{rank}") for rank in world],
        "failed": [[rank, why] for rank in world if (why := _read(look, f"failed/{rank}"))],
        "all_reduce": json.loads(_read(look, "all-reduce") or "null"),
        "ways": [json.loads(way) for rank in world if (way := _read(look, f"way/{rank}"))],
    }
    told["codes"] = ranks.end(_PATIENCE if in_time and not told["failed"] else 0.0)
    return told


def kept_store(dist: Any, address: str, port: int, limit: timedelta) -> Any:  # noqa: ANN401 - torch's
    """Keep the store on one address, since it asks nobody for a token: torch's own is on all.

    From a socket of ours torch 2.4 to 2.7 takes it only without libuv.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    handle = socket.create_server((address, port), family=family).detach()
    more: dict[str, object] = {"is_master": True, "timeout": limit, "wait_for_workers": False}
    more["master_listen_fd"] = handle
    try:
        return dist.TCPStore(address, port, None, **more)
    except NotImplementedError:
        return dist.TCPStore(address, port, None, **more, use_libuv=False)


def _met(store: Any, until: float) -> bool:  # noqa: ANN401 - torch's store
    """Wait for the other nodes' ranks, where this node's own have ended well."""
    try:
        store.wait([_OVER], timedelta(seconds=max(0.1, until - time.monotonic())))
    except Exception:  # noqa: BLE001 - an error of its own in each version of torch
        return False
    return True


def _read(store: Any, key: str) -> str:  # noqa: ANN401 - same
    """Read a key that may not be there, without waiting for it."""
    return str(store.get(key).decode()) if store.check([key]) else ""


def as_node(options: argparse.Namespace) -> dict[str, object]:
    """Start this node's ranks and wait for them; how they did is the host's to tell."""
    ranks = Ranks(options)
    in_time = ranks.wait(_BEGAN + options.within)
    return {"in_time": in_time, "codes": ranks.end(_PATIENCE if in_time else 0.0)}


def numbers_in(text: str) -> list[int]:
    """Read a list of numbers: 8,8,4."""
    return [int(word) for word in text.split(",")]


def main(argv: Sequence[str]) -> int:
    """Take part; what came of it is in the file."""
    options = parsed(argv)
    if options.local_rank is not None:
        return as_rank(options)
    try:
        told = as_host(options) if options.host else as_node(options)
    except Exception as error:  # noqa: BLE001 - told to whoever started it
        told = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_WORDS]}
    part = Path(f"{options.out}.part")
    part.write_text(json.dumps(told), encoding="utf-8")
    part.replace(options.out)
    os._exit(1 if "error" in told else 0)  # a thread may still wait in torch, for ever


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
