"""`--second-start`: the time to a compiled job's first step, with and without stored caches.

One pod starts the job twice, then a fresh pod with the same volume starts it. A fresh pod without
the volume is the first start again.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.bench.machine import await_calm
from tools.bench.measure import await_time
from tools.bench.systems import BIN, PATH
from tools.lab import Lab

if TYPE_CHECKING:
    from tools.lab import Pod

JOB = Path(__file__).parent / "compiled_job.py"
BEGUN, FIRST_STEP = "job-begun", "first-step"
"""Files in the pod's /tmp that the job writes."""
LIMIT = 1200.0
MOST = 0.40
"""The largest allowed ratio of a second start to the first."""
COLD, AGAIN, FRESH = "first start", "again on the same pod", "on a fresh pod with the volume"


@dataclass
class Start:
    """One start; times in seconds."""

    name: str
    to_step: float  # from the pod's start to the job's first step
    in_job: float  # of it from the job's start
    caches: str  # what the agent said of the caches
    written: str  # what it wrote back


def measure_second_start(python: Path, layers: int) -> list[Start]:
    """Start the job three times; the pods share a folder, as a network volume."""
    with ExitStack() as stack:
        volume = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir="/var/tmp"))
        )
        shared = [JOB.parent, volume, *(p.parents[1] for p in (python, python.resolve()))]
        starts = []
        with Lab(names=["pod0"], shm="8g", share=shared) as lab:
            starts += [start(lab.pods[0], name, python, layers, volume) for name in (COLD, AGAIN)]
        with Lab(names=["pod1"], shm="8g", share=shared) as lab:
            starts.append(start(lab.pods[0], FRESH, python, layers, volume))
    return starts


def start(pod: Pod, name: str, python: Path, layers: int, volume: Path) -> Start:
    """Run the job with the agent in a pod to its end; return the times of this start."""
    for file in (BEGUN, FIRST_STEP):
        (pod.tmp / file).unlink(missing_ok=True)
    env = {
        "PATH": PATH,
        "RUNPOD_POD_ID": pod.name,
        "HEAD_POD_ID": pod.name,
        "EXPECTED_WORKERS": "0",
        "AGENT_ON_DONE": "exit",
        "AGENT_LOG_DIR": "/tmp/logs",
        "AGENT_CACHE_DIR": str(volume),
        "AGENT_RERUN": "1",  # the next start on this pod is another run
    }
    job = [str(python), str(JOB), "--layers", str(layers)]
    job += ["--begun", f"/tmp/{BEGUN}", "--first-step", f"/tmp/{FIRST_STEP}"]
    await_calm()
    began = time.time()
    container = pod.start([str(BIN / "pod-agent"), "run", "--", *job], env=env)
    try:
        begun = await_time(pod.tmp / BEGUN, container, LIMIT)
        first = await_time(pod.tmp / FIRST_STEP, container, LIMIT)
    except TimeoutError as late:
        raise RuntimeError(f"{name}: {late}\n{container.tail()}") from None
    code = container.wait(LIMIT)
    if code != 0:
        raise RuntimeError(f"{name}: exit code {code}\n{container.tail()}")
    said = [
        line.partition("compile caches: ")[2]
        for line in container.stderr().splitlines()
        if "compile caches: " in line
    ]
    written = said[1] if len(said) > 1 else "nothing"
    return Start(name, first - began, first - begun, said[0] if said else "nothing", written)


def second_start_table(starts: list[Start]) -> str:
    """Return the table, and what the agent said."""
    cold = starts[0].to_step
    lines = [
        "| start | to the first step | of it in the job | ratio to the first |",
        "| --- | --- | --- | --- |",
    ]
    for one in starts:
        ratio = "" if one is starts[0] else f"{one.to_step / cold:.2f}"
        lines.append(f"| {one.name} | {one.to_step:.1f} s | {one.in_job:.1f} s | {ratio} |")
    lines.append("")
    lines += [f"{one.name}: {one.caches}; written back: {one.written}" for one in starts]
    return "\n".join(lines)


def is_slow(starts: list[Start]) -> bool:
    """Return whether a second start took more than MOST of the first."""
    return any(one.to_step > MOST * starts[0].to_step for one in starts[1:])
