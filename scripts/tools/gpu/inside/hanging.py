"""A job that hangs in a collective after three steps, in the way that is asked for.

probe: no hang; an all-reduce of all ranks by NCCL on one GPU, to see whether it is allowed.
nccl-two: two ranks on one GPU; the last one does not join the fourth all-reduce.
nccl-one: one rank, whose all-reduce waits behind kernels that only spin.
gloo: two ranks; the last one does not join the fourth all-reduce, and no kernel runs.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from datetime import timedelta
from typing import Any

STEPS = 3
HANGS_SECONDS = 240
SPIN_CYCLES = 1_500_000_000  # About a second; many short kernels end with their process
SPINS = 150


def main() -> None:
    """Join all steps, then hang."""
    way = sys.argv[1]
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    if device != "cpu":
        torch.cuda.set_device(0)
    backend = "gloo" if way == "gloo" else "nccl"
    dist.init_process_group(backend, timeout=timedelta(seconds=HANGS_SECONDS))
    numbers = torch.ones(1 << 20, device=device)
    for step in range(1, STEPS + 1):
        dist.all_reduce(numbers)
        synchronize(torch)
        if rank == 0:
            print(f"step {step}/100 mean reward 0.500", flush=True)
    if way == "probe":
        dist.destroy_process_group()
        return
    if way == "nccl-one":
        for _ in range(SPINS):
            torch.cuda._sleep(SPIN_CYCLES)  # noqa: SLF001 - torch has no other kernel that only waits
    elif rank == world - 1:
        compute_score()
    print(f"rank {rank} hangs", flush=True)
    join_all_reduce(torch, dist, numbers)


def compute_score() -> None:
    """Stand for code that never returns."""
    time.sleep(HANGS_SECONDS)


def join_all_reduce(torch: Any, dist: Any, numbers: Any) -> None:  # noqa: ANN401 - modules, a tensor
    """Wait in the collective."""
    dist.all_reduce(numbers)
    synchronize(torch)


def synchronize(torch: Any) -> None:  # noqa: ANN401 - the module
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
