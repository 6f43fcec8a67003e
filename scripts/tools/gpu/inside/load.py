"""Bring the GPU into known states, one after another; each is a line of JSON with its times."""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WIDE, SMALL = 8192, 256
SPIN_CYCLES = 100_000_000  # About 50 ms
COPY_BYTES = 2 << 30


def main() -> None:
    """Go through the states, each for so many seconds."""
    each = float(sys.argv[1])
    torch: Any = importlib.import_module("torch")
    has_gpu = torch.cuda.is_available()
    device, wide = ("cuda", WIDE) if has_gpu else ("cpu", SMALL)
    kind = torch.bfloat16 if has_gpu else torch.float32

    def wait() -> None:
        if has_gpu:
            torch.cuda.synchronize()

    def during(name: str, act: Callable[[], object]) -> None:
        begin, rounds = time.time(), 0
        while time.time() - begin < each:
            act()
            wait()
            rounds += 1
        line = {"state": name, "begin": begin, "end": time.time(), "rounds": rounds}
        print(json.dumps(line), flush=True)

    one = torch.randn(wide, wide, device=device, dtype=kind)
    two = torch.randn(wide, wide, device=device, dtype=kind)
    thin = torch.randn(1, wide, device=device, dtype=kind)
    wait()
    during("a context alone", lambda: time.sleep(0.2))
    during("matmul", lambda: [torch.mm(one, two) for _ in range(10)])
    during("small matmuls", lambda: [torch.mm(thin, two) for _ in range(1000)])
    if has_gpu:
        large = torch.empty(COPY_BYTES // 4, device=device)
        other = torch.empty_like(large)
        during("copies", lambda: [other.copy_(large) for _ in range(20)])
        during("one thread spins", lambda: torch.cuda._sleep(SPIN_CYCLES))  # noqa: SLF001 - torch has no other kernel that only waits


if __name__ == "__main__":
    main()
