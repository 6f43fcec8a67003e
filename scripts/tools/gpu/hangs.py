"""A hang in a collective: what the GPU shows meanwhile, and what finds it.

First the states of a GPU that are no hang. Then jobs of the agent that hang: by NCCL
(two ranks on one GPU where NCCL takes them, else one whose all-reduce waits behind kernels that
spin), and by gloo with an idle GPU. Each is diagnosed by py-spy, by the flight recorder, and by the
agent's own alarm.
"""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.diagnosis.flight_recorder import not_entered, read_dump
from tools.gpu import agents, agents_figures, nvml, recorder
from tools.gpu.part import PartError
from tools.gpu.preflight import HANGING, SHARED_GPU, may_take_two

if TYPE_CHECKING:
    import psutil

    from agent.diagnosis.flight_recorder import GroupProgress
    from tools.gpu.part import Work

LOAD = Path(__file__).parent / "inside" / "load.py"
EACH_SECONDS = 4.0
STALL_SECONDS = 20
ALARM = r"no sign of work|AGENT_STALL\): "
ALARM_SECONDS = STALL_SECONDS + 11.0
FRAME = re.compile(r"^ {4}(.*)$", re.MULTILINE)
MOST_FRAMES = 6
PY_SPY = Path(sys.executable).with_name("py-spy")
STOPPED_CODE = 128 + signal.SIGTERM


def run(at: Work) -> None:
    """Measure the states, then each hang; a hang that cannot be made does not end the others."""
    failures = []
    at.figures["recorder_names"] = recorder.names_in(torch_libraries())
    with nvml.Sampler() as sampler:
        at.figures["agent"] = agent = dict[str, Any]()
        failures += agents_figures.compare(at, agent)
        at.figures["states"], lines, readings = states(at, sampler)
        if at.has_gpu:
            agent["states"], wrong = agents_figures.judge(readings, lines)
            failures += wrong
        for name, act in (("nccl", by_nccl), ("gloo", by_gloo)):
            figures = at.figures[name] = dict[str, Any]()
            try:
                act(at, sampler, figures)
            except PartError as error:
                figures["failure"] = str(error)
                failures.append(f"{name}: {error}")
    if failures:
        raise PartError("; ".join(failures))


def torch_libraries() -> list[Path]:
    """Return torch's own shared libraries that may read the variables."""
    found = importlib.util.find_spec("torch")
    folder = Path(found.origin or "").parent / "lib" if found is not None else Path()
    return [folder / f"libtorch_{kind}.so" for kind in ("cpu", "cuda", "python")]


def states(
    at: Work, sampler: nvml.Sampler
) -> tuple[dict[str, Any], list[dict[str, Any]], list[agents_figures.Reading]]:
    """Return what the GPU shows with no process, and in each state of a program.

    With it the states with their times, and the agent's own readings meanwhile.
    """
    begin = time.time()
    time.sleep(min(EACH_SECONDS, at.left()))
    found: dict[str, Any] = {"no process": sampler.between(begin, time.time())}
    program = at.start("load", [sys.executable, str(LOAD), f"{EACH_SECONDS:g}"])
    readings = agents_figures.read_during(at, program)
    if at.wait(program) != 0:
        raise PartError(f"load failed: {program.tail()}")
    lines = [json.loads(line) for line in program.output.splitlines()]
    for state in lines:
        found[state["state"]] = sampler.between(state["begin"], state["end"])
    return found, lines, readings


def by_nccl(at: Work, sampler: nvml.Sampler, figures: dict[str, Any]) -> None:
    """Hang by NCCL, on a GPU."""
    if not at.has_gpu:
        figures["left_out"] = "no GPU"
        return
    if may_take_two(at):
        try:
            hang(at, "nccl-two", 2, sampler, figures)
        except PartError as error:
            if figures.get("start_seconds"):  # it did hang; the failure is another
                raise
            figures["two_ranks"] = str(error)[:400]
        else:
            return
    hang(at, "nccl-one", 1, sampler, figures)


def by_gloo(at: Work, sampler: nvml.Sampler, figures: dict[str, Any]) -> None:
    """Hang by gloo, with an idle GPU."""
    hang(at, "gloo", 2, sampler, figures)


def hang(at: Work, way: str, ranks: int, sampler: nvml.Sampler, figures: dict[str, Any]) -> None:
    """Run a job that hangs; add what was found about it."""
    recorded = at.folder / f"{way}-recorder"
    recorded.mkdir()
    count = "AGENT_NUM_GPUS" if at.has_gpu else "AGENT_NUM_CPUS"
    env = {
        count: str(ranks),
        "AGENT_STALL": f"{STALL_SECONDS}s",
        **SHARED_GPU,
        **recorder.variables(recorded),
    }
    figures["way"] = way
    agent = agents.start(at, way, [sys.executable, str(HANGING), way], env)
    if at.wait_for(agent, r"^rank 0 hangs", 40) is None:
        at.stop(agent)
        raise PartError(f"{way} made no hang: {agent.tail()}")
    began = time.time()
    figures["start_seconds"] = round(time.monotonic() - agent.began, 1)
    processes = ranks_of(at)
    figures["stacks"] = {rank: stacks(at, way, rank, process) for rank, process in processes}
    if at.has_gpu and way != "gloo":
        figures["recorder"] = read_recorder(at, recorded)
    found = at.wait_for(agent, ALARM, ALARM_SECONDS, errors=True)
    figures["gpu"] = sampler.between(began, time.time())
    figures["alarm_seconds"] = None if found is None else round(time.time() - began, 1)
    if found is not None:
        at.wait_for(agent, r"all stacks are in", 35, errors=True)  # with the flight recorder
    figures["alarm"] = [line[-400:] for line in agent.errors.splitlines() if "stall" in line][-8:]
    figures["named"] = [name for name in ("compute_score", "all_reduce") if name in agent.errors]
    began_to_stop = time.monotonic()
    figures["code"] = at.stop(agent)
    figures["stop_seconds"] = round(time.monotonic() - began_to_stop, 1)


def ranks_of(at: Work) -> list[tuple[str, psutil.Process]]:
    """Return the ranks by number."""
    found: dict[str, psutil.Process] = {}
    for process in sorted(at.marked(), key=lambda one: one.pid):
        environ = process.environ()
        if "RANK" in environ and HANGING.name in " ".join(process.cmdline()):
            found.setdefault(environ["RANK"], process)
    return sorted(found.items())


def stacks(at: Work, way: str, rank: str, process: psutil.Process) -> dict[str, Any]:
    """Dump a rank's stacks by py-spy; return its code and the first frames of its main thread."""
    argv = [str(PY_SPY), "dump", "--pid", str(process.pid)]
    began = time.monotonic()
    program = at.start(f"{way}-py-spy-{rank}", argv)
    code = at.wait(program, 30)
    main = program.output.partition('"MainThread"')[2].partition("\nThread ")[0]
    return {
        "code": code,
        "seconds": round(time.monotonic() - began, 2),
        "said": "" if code == 0 else program.tail(),
        "frames": FRAME.findall(main)[:MOST_FRAMES],
    }


def read_recorder(at: Work, folder: Path) -> dict[str, Any]:
    """Request a dump and read it; what fails is a figure."""
    began = time.monotonic()
    try:
        dumps = recorder.dumped(folder, at.left())
    except PartError as error:
        return {"failure": str(error)}
    figures: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1)}
    progress: list[GroupProgress] = []
    for name, path in dumps.items():
        data = path.read_bytes()
        try:
            figures[name] = {"bytes": len(data), **recorder.about(recorder.load(data))}
            progress += read_dump(data, int(name.rpartition("_")[2]))
        except Exception as error:  # noqa: BLE001 - a dump of any other form is a figure, too
            figures[name] = {"bytes": len(data), "failure": f"{type(error).__name__}: {error}"}
    figures["agent_reads"] = [f"rank {one.rank}: {one.recent[-1].name}" for one in progress]
    figures["agent_says"] = [*not_entered(progress)]
    return figures
