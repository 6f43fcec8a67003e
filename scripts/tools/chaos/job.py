"""The job of chaos: an actor on every node; it ends when the file `go` exists.

argv: a folder that all pods see. Every process of an attempt writes a timestamp there, several
times a second; the file `go` ends the job. It imports nothing of the lab, since a pod runs it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

DONE, SAW_A_LOSS = 7, 9
STEP = 0.2


class Heart:
    """Writes timestamps as long as this process runs."""

    def __init__(self, folder: str, attempt: str, place: str) -> None:
        self.path = Path(folder, "beats", f"{attempt}.{place}.{time.monotonic_ns()}")
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            with self.path.open("a") as file:
                file.write(f"{time.monotonic():.2f}\n")
            time.sleep(STEP)

    def alive(self) -> bool:
        """Answer a call, which fails if the actor is dead."""
        return True


def main(folder: str) -> int:
    """Start an actor on each node and call them all in a loop."""
    attempt = os.environ["AGENT_ATTEMPT"]
    Heart(folder, attempt, "driver")
    import ray  # noqa: PLC0415 - the driver is seen alive before
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    actor: Any = ray.remote(num_cpus=0)(Heart)
    actors = [
        actor.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(folder, attempt, f"actor-{node['NodeManagerAddress']}")
        for node in ray.nodes()
        if node["Alive"]
    ]
    print(f"attempt {attempt} on {len(actors)} nodes", flush=True)
    while not Path(folder, "go").exists():
        try:
            ray.get([one.alive.remote() for one in actors])
        except ray.exceptions.RayError as loss:
            print(f"attempt {attempt} lost an actor: {type(loss).__name__}", flush=True)
            return SAW_A_LOSS
        time.sleep(STEP)
    print(f"attempt {attempt} is done", flush=True)
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
