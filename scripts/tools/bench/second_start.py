"""`--second-start`: the time to a job's first step, with and without stored caches.

One pod starts the job twice, then a fresh pod with the same volume starts it. A fresh pod without
the volume is the first start again. The jobs: a program that compiles, and the recipe `trl-grpo` on
a small model made on the spot.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tools.bench.machine import await_calm
from tools.bench.measure import STEP, await_time
from tools.bench.systems import BIN, PATH
from tools.lab import Lab

if TYPE_CHECKING:
    from collections.abc import Callable

    from tools.lab import Container, Pod

COMPILED_JOB = Path(__file__).parent / "compiled_job.py"
SMALL_MODEL = COMPILED_JOB.parents[1] / "frameworks" / "inside" / "small_model.py"
BEGUN, FIRST_STEP = "job-begun", "first-step"
"""Files in the pod's /tmp that the compiled job writes."""
CHECKPOINTS = "checkpoints"
LIMIT = 1200.0
MOST = 0.40
"""The largest allowed ratio of a second start to the first."""
COLD, AGAIN, FRESH = "first start", "again on the same pod", "on a fresh pod with the volume"
TRL = "trl-grpo"
TRL_ARGS = (
    "--max-completion-length 8 --num-generations 4 --per-device-train-batch-size 8 "
    "--gradient-accumulation-steps 1 --max-steps 2 --save-steps 1000"
)
TRL_COMPILED = "--config torch_compile=true"


@dataclass
class Start:
    """One start; times in seconds."""

    name: str
    to_step: float  # from the pod's start to the job's first step
    in_job: float  # of it from the job's start
    caches: str  # what the agent said of the caches
    written: str  # what it wrote back


@dataclass
class StartedJob:
    """A job to start: what it takes, and how its times are read."""

    argv: list[str]
    env: dict[str, str]
    times: Callable[[Pod, Container], tuple[float, float]]  # its begin, its first step
    shared: list[Path] = field(default_factory=list)  # folders that it needs in the pods


def compiled_job(python: Path, layers: int) -> StartedJob:
    """Return the job that compiles, which writes its times to files."""

    def times(pod: Pod, container: Container) -> tuple[float, float]:
        begun = await_time(pod.tmp / BEGUN, container, LIMIT)
        return begun, await_time(pod.tmp / FIRST_STEP, container, LIMIT)

    job = [str(python), str(COMPILED_JOB), "--layers", str(layers)]
    job += ["--begun", f"/tmp/{BEGUN}", "--first-step", f"/tmp/{FIRST_STEP}"]
    return StartedJob(["run", "--", *job], {}, times, [COMPILED_JOB.parent])


def trl_job(python: Path, folder: Path, *, is_compiled: bool) -> StartedJob:
    """Return the recipe with a small model; with torch.compile by a field of its configuration."""
    made = folder / "ground"
    made.mkdir()
    subprocess.run([str(python), str(SMALL_MODEL), str(made)], check=True, timeout=LIMIT)

    def times(_pod: Pod, container: Container) -> tuple[float, float]:
        begun = await_output(container, "✓ job ", "stderr")
        return begun, await_output(container, "\nstep 1/", "stdout")

    more = f" {TRL_COMPILED}" if is_compiled else ""
    env = {
        "PATH": os.pathsep.join([str(python.parent), os.defpath]),
        "AGENT_JOB": TRL,
        "AGENT_JOB_ARGS": f"{TRL_ARGS}{more}",
        "AGENT_MODEL": str(made / "model"),
        "AGENT_TRAIN_DATA": str(made / "train.jsonl"),
        "AGENT_CHECKPOINTS": f"/tmp/{CHECKPOINTS}",
        "HF_HUB_OFFLINE": "1",
    }
    return StartedJob([], env, times, [made])


def await_output(container: Container, text: str, stream: str) -> float:
    """Wait until a text is in the container's output; return when."""
    until = time.monotonic() + LIMIT
    while True:
        is_over = not container.running
        output = container.stdout() if stream == "stdout" else container.stderr()
        if text in f"\n{output}":
            return time.time()
        if is_over or time.monotonic() > until:
            raise TimeoutError(f"{container.label}: no {text.strip()!r} in its {stream}")
        time.sleep(STEP)


def measure_second_start(python: Path, kind: str, layers: int) -> list[Start]:
    """Start a job three times; the pods share a folder, as a network volume."""
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="bench-", dir="/var/tmp")
        folder = Path(stack.enter_context(made))
        volume = folder / "volume"
        volume.mkdir()
        if kind == "compile":
            job = compiled_job(python, layers)
        else:
            job = trl_job(python, folder, is_compiled=kind == "trl-grpo-compile")
        shared = [*job.shared, volume, *(p.parents[1] for p in (python, python.resolve()))]
        starts = []
        for pod, names in (("pod0", (COLD, AGAIN)), ("pod1", (FRESH,))):
            with Lab(names=[pod], shm="8g", share=shared) as lab:
                starts += [start(lab.pods[0], name, job, volume) for name in names]
    return starts


def start(pod: Pod, name: str, job: StartedJob, volume: Path) -> Start:
    """Run the job with the agent in a pod to its end; return the times of this start."""
    for file in (BEGUN, FIRST_STEP):
        (pod.tmp / file).unlink(missing_ok=True)
    shutil.rmtree(pod.tmp / CHECKPOINTS, ignore_errors=True)  # it begins anew with step 1
    env = {
        "PATH": PATH,
        "RUNPOD_POD_ID": pod.name,
        "HEAD_POD_ID": pod.name,
        "EXPECTED_WORKERS": "0",
        "AGENT_ON_DONE": "exit",
        "AGENT_LOG_DIR": "/tmp/logs",
        "AGENT_CACHE_DIR": str(volume),
        "AGENT_RERUN": "1",  # the next start on this pod is another run
        **job.env,
    }
    await_calm()
    began = time.time()
    container = pod.start([str(BIN / "pod-agent"), *job.argv], env=env)
    try:
        begun, first = job.times(pod, container)
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
