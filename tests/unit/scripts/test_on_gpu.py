"""scripts/gpu: parts that fail, the arithmetic that is compared, dumps, samples."""

from __future__ import annotations

import json
import pickle
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from agent.frameworks.layouts import FSDP_RESIDENT
from agent.frameworks.recipe import ModelShape, NodeSize
from agent.frameworks.sizing import Workload, sizing_of
from agent.node.figures import GpuFigures
from tools.gpu import agents_figures, compiling, memory, nvml, overlay, recorder, running, training
from tools.gpu.part import Part, PartError, processes_of

if TYPE_CHECKING:
    from pathlib import Path

    from tools.gpu.part import Work


def leaves_a_process_and_fails(at: Work) -> None:
    """Start what does not end, keep a figure, and fail."""
    at.start("sleeps", [sys.executable, "-c", "import time; time.sleep(600)"])
    at.figures["seen"] = 1
    raise PartError("no such luck")


def waits_too_long(at: Work) -> None:
    """Wait for a process beyond the deadline."""
    at.run("sleeps", [sys.executable, "-c", "import time; time.sleep(600)"])


def works(at: Work) -> None:
    """Keep the output of a process."""
    at.figures["said"] = at.run("prints", [sys.executable, "-c", "print('hello')"]).output


@pytest.mark.processes
def test_each_part_ends_alone(tmp_path: Path) -> None:
    """A failed and a late part keep their figures, leave no process, and the next one runs."""
    out = tmp_path / "out"
    out.mkdir()
    report = running.Report(out)
    parts = [
        Part("fails", 60, leaves_a_process_and_fails),
        Part("late", 1, waits_too_long),
        Part("works", 60, works),
    ]
    running.run_phase([parts], tmp_path, report, time.monotonic() + 60, 1.0)
    figures = json.loads((out / "gpu.json").read_text())
    assert figures["fails"]["failure"] == "PartError: no such luck"
    assert (figures["fails"]["seen"], figures["fails"]["killed_at_the_end"]) == (1, 1)
    assert "did not end" in figures["late"]["failure"]
    assert figures["works"]["said"] == "hello\n"
    assert [processes_of(part.name) for part in parts] == [[], [], []]
    running.pack_logs(tmp_path, out)
    assert "hello" in (out / "works.log").read_text()
    assert len(list(out.iterdir())) <= 8


def test_what_comes_back_is_within_the_limit() -> None:
    """One log for each part, the figures and the archive: eight files."""
    names = [part.name for lanes in running.PHASES for lane in lanes for part in lane]
    assert len(names) + 2 <= 8
    assert [[one.name for one in lane] for lane in running.chosen(["hang"])[0]] == [["hang"]]


@pytest.mark.parametrize("size", memory.SIZES, ids=lambda size: size.name)
def test_the_compared_arithmetic_is_that_of_the_sizing(size: memory.Size) -> None:
    """The figure without tokens, and that of a token, are those of the sizing's own sentence."""
    shape = ModelShape.from_config(size.config())
    assert shape is not None
    node = NodeSize(1, 16, gpu_memory=80)
    load = Workload((FSDP_RESIDENT,), tokens=size.tokens, nodes=(node,), model=shape)
    without = memory.predicted(shape, FSDP_RESIDENT, 0) / 1e9
    token = (memory.predicted(shape, FSDP_RESIDENT, 1) / 1e9 - without) * 1e3
    assert sizing_of(load).why["tokens"] == f"80 GB - {without:.1f} GB, at {token:.1f} MB a token"


def test_a_dump_runs_no_code() -> None:
    """Plain data is read; a name, which a pickle would call, is refused."""
    entry = {"profiling_name": "nccl:all_reduce", "state": "scheduled", "frames": []}
    found = recorder.about(recorder.load(pickle.dumps({"version": "2.10", "entries": [entry]})))
    assert (found["entries"], found["states"]) == (1, {"scheduled": 1})
    assert found["last"]["profiling_name"] == "nccl:all_reduce"
    with pytest.raises(recorder.DumpError, match=r"names .*\.system"):
        recorder.load(b"cos\nsystem\n(S'true'\ntR.")


def test_samples_are_summed_up() -> None:
    """The least, the median and the most; what a GPU does not report is left out."""
    samples = [nvml.Sample(float(n), {"power_w": power}) for n, power in enumerate((70, 90, 350))]
    assert nvml.summary(samples) == {"samples": 3, "power_w": [70, 90, 350]}


def test_rewards_are_read_from_the_steps() -> None:
    """Means of the first and last five steps."""
    output = "".join(f"step {n}/10 mean reward {n / 10:.3f} tokens 1\n" for n in range(1, 11))
    found = training.rewards(output)
    assert found == {"steps": [1, 10], "reward_first": 0.3, "reward_last": 0.8}


def test_compile_caches_go_through_the_agents_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seeded start has the files of the cold one; the one after it has them elsewhere."""
    seen: dict[str, list[str]] = {}

    def started(_at: Work, name: str, caches: Path) -> dict[str, float]:
        kernel = caches / "triton" / "ab" / "kernel.ptx"
        seen[name] = [kernel.read_text()] if kernel.exists() else []
        kernel.parent.mkdir(parents=True, exist_ok=True)
        kernel.write_text("compiled")
        return {"start_to_first_step": 10.0 if name == "cold" else 4.0}

    monkeypatch.setattr(compiling, "started", started)
    at = WithoutGpu(tmp_path, {})
    compiling.run(at)  # type: ignore[arg-type]  # it has the parts that are used
    compiled = ["compiled"]
    assert seen == {"cold": [], "again": compiled, "seeded": compiled, "moved": compiled}
    assert at.figures["seeding"]["state"] == "seeded"
    assert at.figures["seeded_ratio"] == 0.4


class WithoutGpu(NamedTuple):
    """The folder and figures of a part."""

    folder: Path
    figures: dict[str, Any]


def test_a_folder_without_wheels_is_named(tmp_path: Path) -> None:
    """`run` without `pack` says so."""
    with pytest.raises(overlay.OverlayError, match="scripts/gpu pack"):
        overlay.make(tmp_path / "python", tmp_path)


def gpu(use: int, power: int) -> GpuFigures:
    """Return the figures of an H100 of 700 W."""
    return GpuFigures(0, use, 500, 81_559, power, 700, 40, 1_980)


def test_whether_a_gpu_works_is_judged_by_state() -> None:
    """The measured rows of docs/evidence/gpu.md are judged rightly; a wrong one is named."""
    rows = {
        "a context alone": (0, 132),
        "matmul": (99, 697),
        "small matmuls": (100, 507),
        "copies": (100, 399),
        "one thread spins": (100, 139),
    }
    readings, lines = [], []
    for number, (state, (use, power)) in enumerate(rows.items()):
        lines.append({"state": state, "begin": number * 10.0, "end": number * 10.0 + 9})
        readings += [
            agents_figures.Reading(number * 10.0 + second, gpu(use, power)) for second in range(10)
        ]
    states, wrong = agents_figures.judge(readings, lines)
    assert wrong == []
    assert states["usual_power"] == 697
    assert states["one thread spins"]["works"] == 0
    lines[1]["state"] = "one thread spins"
    assert (
        "one thread spins: works in 100% of the readings"
        in agents_figures.judge(readings, lines)[1]
    )


def test_figures_that_differ_from_nvidia_smi() -> None:
    """What does not change must be equal, what does near it; unknown values are left out."""
    smi = {"memory_total_mib": 81_559.0, "power_limit_w": 700.0, "power_w": 81.5}
    smi |= {"celsius": 41.0, "utilization": 0.0, "memory_used_mib": 500.0}
    assert agents_figures.differences(gpu(0, 77), {**smi, "ecc_errors": "[N/A]"}) == []
    other = {**smi, "power_limit_w": 650.0, "celsius": 60.0}
    assert agents_figures.differences(gpu(0, 77), other) == [
        "power_limit: 700 here, 650 by nvidia-smi",
        "temperature: 40 here, 60 by nvidia-smi",
    ]
