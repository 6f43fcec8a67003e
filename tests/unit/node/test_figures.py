"""The figures of a machine: by NVML and AMD's tools, of memory, disks and network."""

from __future__ import annotations

import json
import os
import shutil
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest

from agent.node.figures import Figures, GpuFigures, UsualPower, works
from agent.node.read_figures import (
    HostMemory,
    NetworkReader,
    NvmlReader,
    figures_of_amd,
    figures_of_rocm,
    memory_by_program,
    program_name,
    read_amd,
    read_disks,
    read_host_memory,
)
from support.fake_nvml import H100, LOST, NOT_LOADED, NOT_SUPPORTED, FakeNvml, NVMLError
from support.machine_files import cgroup_tree

if TYPE_CHECKING:
    from pathlib import Path

AT_WORK = GpuFigures(0, 100, 72_000, 81_559, 697, 700, 61, 1_395, ("power",))


def nvml_of(monkeypatch: pytest.MonkeyPatch, fake: Any) -> NvmlReader:  # noqa: ANN401 - a module
    """Return a reader that imports this module."""
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return NvmlReader()


def test_a_gpu_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Milliwatts become watts, and bytes MiB; the library is opened once."""
    fake = FakeNvml(H100, {**H100, "use": 0, "reasons": 0x1, "ecc": 3})
    reader = nvml_of(monkeypatch, fake)
    gpus, fault = reader.read()
    assert fault == ""
    assert gpus[0] == AT_WORK
    assert (gpus[1].use, gpus[1].throttled, gpus[1].errors) == (0, (), 3)
    reader.read()
    assert fake.opened == 1


@pytest.mark.parametrize("reserved", [480 << 20, None])
def test_memory_of_the_driver_is_not_in_use(
    monkeypatch: pytest.MonkeyPatch, reserved: int | None
) -> None:
    """An H100 showed 480 MiB without a process; drivers before 510 cannot leave that out."""
    fake = FakeNvml({**H100, "reserved": reserved, "memory": (0, 81_559 << 20)})
    gpus, fault = nvml_of(monkeypatch, fake).read()
    assert (gpus[0].memory_used, gpus[0].memory_total, fault) == (0, 81_559, "")


def test_who_holds_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name where the process is visible here; a GPU that does not say so has none."""
    own = os.getpid()
    denied = NVMLError(NOT_SUPPORTED)
    fake = FakeNvml({**H100, "pids": [own, 2**22 + 1]}, H100, {**H100, "pids": denied})
    holders = nvml_of(monkeypatch, fake).holders()
    assert [len(names) for names in holders.values()] == [1, 0, 0]
    assert holders[0][0].endswith(f", pid {own}")
    fails = FakeNvml(init=NVMLError(NOT_LOADED))
    assert nvml_of(monkeypatch, fails).holders() == {}


def test_reasons_of_a_low_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bits of one reason are one word; with an older driver by the former function."""
    hot = {**H100, "reasons": 0x20 | 0x40 | 0x80 | 0x8}
    gpus, _ = nvml_of(monkeypatch, FakeNvml(hot)).read()
    assert set(gpus[0].throttled) == {"temperature", "power brake", "hardware"}

    class Older(FakeNvml):
        def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
            return int(self.value(handle, "former"))

    older = {**hot, "reasons": NVMLError(NOT_SUPPORTED), "former": 0x4}
    gpus, _ = nvml_of(monkeypatch, Older(older)).read()
    assert gpus[0].throttled == ("power",)


def test_a_gpu_that_reports_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU divided by MIG has no utilization; a lost one says so, and the others report on."""
    mig = {**H100, "use": NVMLError(NOT_SUPPORTED), "limit": NVMLError(NOT_SUPPORTED)}
    lost = dict.fromkeys(H100, NVMLError(LOST))
    gpus, fault = nvml_of(monkeypatch, FakeNvml(mig, lost, H100)).read()
    assert fault == ""
    assert (gpus[0].use, gpus[0].power_limit, gpus[0].power) == (None, None, 697)
    assert gpus[1] == GpuFigures(1, fault="GPU is lost")
    assert gpus[2] == msgspec.structs.replace(AT_WORK, index=2)


def test_xid_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one stays, at the GPU that it came from."""
    fake = FakeNvml(H100, H100)
    reader = nvml_of(monkeypatch, fake)
    assert [gpu.xid for gpu in reader.read()[0]] == [0, 0]
    assert fake.registered == [0, 1]
    fake.xids += [(1, 31), (1, 79)]
    assert [gpu.xid for gpu in reader.read()[0]] == [0, 79]
    assert [gpu.xid for gpu in reader.read()[0]] == [0, 79]


def test_no_driver_and_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either is named; the driver is tried again."""
    fake = FakeNvml(H100, init=NVMLError(NOT_LOADED))
    reader = nvml_of(monkeypatch, fake)
    assert reader.read() == ((), "Driver Not Loaded")
    fake.init = None
    assert len(reader.read()[0]) == 1
    assert nvml_of(monkeypatch, None).read() == ((), "nvidia-ml-py is not installed")


AMD = """[{"gpu": 0, "usage": {"gfx_activity": {"value": 97, "unit": "%"}},
 "power": {"socket_power": {"value": 642, "unit": "W"}, "throttle_status": "THROTTLED"},
 "clock": {"gfx_0": {"clk": {"value": 1905, "unit": "MHz"}}},
 "temperature": {"edge": "N/A", "hotspot": {"value": 71, "unit": "C"}},
 "ecc": {"total_uncorrectable_count": 2},
 "mem_usage": {"total_vram": {"value": 196592, "unit": "MB"},
               "used_vram": {"value": 150000, "unit": "MB"}}},
 {"gpu": 1, "usage": "N/A", "power": {"socket_power": "N/A"}}]"""
ROCM = """WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

{"card0": {"GPU use (%)": "97", "VRAM Total Memory (B)": "206141652992",
 "VRAM Total Used Memory (B)": "157286400000", "Current Socket Graphics Package Power (W)": "642.0",
 "Max Graphics Package Power (W)": "750.0", "Temperature (Sensor junction) (C)": "71.0",
 "sclk clock speed:": "(1905Mhz)", "sclk clock level:": "1"},
 "card1": {"GPU use (%)": "N/A"}, "system": {"Driver version": "6.7.0"}}
"""


def test_amds_two_tools() -> None:
    """Each in its own words; a GPU without values has an entry all the same."""
    one = GpuFigures(0, 97, 150_000, 196_592, 642, None, 71, 1_905, ("hardware",), errors=2)
    assert figures_of_amd(AMD) == figures_of_amd(f'{{"gpu_data": {AMD}}}') == (one, GpuFigures(1))
    rocm = GpuFigures(0, 97, 150_000, 196_592, 642, 750, 71, 1_905)
    assert figures_of_rocm(ROCM) == (rocm, GpuFigures(1))


def test_amds_tools_on_path(tmp_path: Path) -> None:
    """The first that reports GPUs; the last failure is named where none does."""
    bare = f"{tmp_path}"
    assert read_amd(bare) == ((), "neither amd-smi nor rocm-smi is installed")
    for name, text in (("amd-smi", "no driver"), ("rocm-smi", ROCM)):
        (tmp_path / name).write_text(f"#!/bin/sh\n/bin/cat <<'end'\n{text}\nend\n")
        (tmp_path / name).chmod(0o755)
    gpus, fault = read_amd(bare)
    assert (len(gpus), fault) == (2, "")
    (tmp_path / "rocm-smi").unlink()
    assert read_amd(bare) == ((), "amd-smi: no JSON")


# --- whether a GPU works -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "power", "usual", "is_working"),
    [
        (0, 77, 697, False),  # no process
        (0, 132, 697, False),  # a context that does nothing
        (100, 131, 697, False),  # an NCCL all-reduce that hangs
        (100, 139, 697, False),  # one thread that spins
        (100, 131, 399, False),
        (100, 399, 697, True),  # copies within the GPU
        (100, 507, 507, True),
        (99, 697, 697, True),
        (100, 131, None, False),  # by the limit of 700 W
        (100, 399, None, True),
        (100, None, 697, True),  # a driver without power
        (None, 697, 697, False),
    ],
)
def test_works_by_use_and_power(
    use: int | None, power: int | None, usual: int | None, *, is_working: bool
) -> None:
    """The rows are those of docs/evidence/gpu.md, an H100 of 700 W."""
    assert works(GpuFigures(0, use, power=power, power_limit=700), usual) is is_working


def test_the_usual_power_is_that_of_work() -> None:
    """A hang of hours, and idle phases, do not make their power the usual one."""
    usual = UsualPower()
    work = GpuFigures(0, 98, power=650, power_limit=700)
    hang = GpuFigures(0, 100, power=131, power_limit=700)
    assert usual.with_sample(hang) == 0
    for _ in range(50):
        assert usual.with_sample(work) == 650
    for _ in range(5_000):
        assert usual.with_sample(hang) == 650
    assert not msgspec.structs.replace(hang, usual_power=650).is_working
    assert msgspec.structs.replace(work, usual_power=650).is_working


# --- the machine ---------------------------------------------------------------------------------


def test_this_machine(tmp_path: Path) -> None:
    """Some memory is used, and not all; network and programs are read without an error."""
    memory = read_host_memory()
    assert 0 < memory.used < memory.total <= psutil.virtual_memory().total
    without_cgroup = read_host_memory(tmp_path, tmp_path)
    assert without_cgroup.total == psutil.virtual_memory().total
    assert NetworkReader().read() == (0.0, 0.0)
    assert all(size > 0 for size in memory_by_program().values())


STAT = "anon 100\nfile 900\ninactive_file 600\nactive_file 200\n"


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("0::/\n", {"memory.max": "4000", "memory.current": "2800", "memory.stat": STAT}),
        (
            "5:memory:/\n",
            {
                "memory/memory.limit_in_bytes": "4000",
                "memory/memory.usage_in_bytes": "2800",
                "memory/memory.stat": "total_inactive_file 600\ntotal_active_file 200\n",
            },
        ),
    ],
)
def test_memory_of_a_container(tmp_path: Path, line: str, files: dict[str, str]) -> None:
    """Caches of files do not count: the kernel frees them before it kills."""
    assert read_host_memory(*cgroup_tree(tmp_path, line, files)) == HostMemory(2_000, 4_000)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("ray::WorkerDict.actor_rollout_generate_sequences", "ray::WorkerDict"),
        ("ray::WorkerDict", "ray::WorkerDict"),
        ("ray::IDLE||", "ray::IDLE"),
        ("/opt/venv/bin/python3.12|-u|-m|verl.trainer.main_ppo|a=1", "verl.trainer.main_ppo"),
        ("python|-u|/work/train.py|--key|x", "train.py"),
        ("python3", "python3"),
        ("/usr/bin/vllm|serve", "vllm"),
        ("VLLM::EngineCore|", "VLLM::EngineCore"),
        ("", "a process"),
    ],
)
def test_names_of_programs(line: str, name: str) -> None:
    """A Ray actor's class without its method, and the module or script that Python runs."""
    assert program_name(line.replace("|", "\0").encode()) == name


def test_programs_by_their_memory(tmp_path: Path) -> None:
    """Shared pages do not count, small programs are left out, equal names are one."""
    page = os.sysconf("SC_PAGE_SIZE")
    gib = (1 << 30) // page
    rows = {"7": ("ray::WorkerDict.a", 3 * gib, gib), "8": ("ray::WorkerDict", 2 * gib, gib)}
    rows |= {"9": ("plasma", 8 * gib, 8 * gib), "10": ("bash", 100, 50)}
    for pid, (name, resident, shared) in rows.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "statm").write_text(f"999999 {resident} {shared} 1 0 1 0\n")
        (tmp_path / pid / "cmdline").write_bytes(name.encode() + b"\0")
    (tmp_path / "11").mkdir()  # it has ended
    assert memory_by_program(tmp_path) == {"ray::WorkerDict": 3 << 30}


def test_disks_are_named_once(tmp_path: Path) -> None:
    """A folder that does not exist yet lies on its parent's disk; an unreadable one is left out."""
    disks = read_disks([str(tmp_path / "later/still"), str(tmp_path), "/proc/1/none"])
    assert disks[0].folder == str(tmp_path / "later/still")
    assert disks[0].total == shutil.disk_usage(tmp_path).total
    assert str(tmp_path) not in [disk.folder for disk in disks]


def test_network_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the difference of two readings, without loopback; RDMA counts words of 4 bytes."""
    clock = iter([10.0, 20.0, 30.0])
    counters = {"lo": (9e9, 9e9), "eth0": (1_000, 2_000)}

    def io(*, pernic: bool) -> dict[str, Any]:
        assert pernic
        rows = counters.items()
        return {name: SimpleNamespace(bytes_sent=a, bytes_recv=b) for name, (a, b) in rows}

    monkeypatch.setattr(psutil, "net_io_counters", io)
    port = tmp_path / "mlx5_0/ports/1/counters"
    port.mkdir(parents=True)
    (port / "port_rcv_data").write_text("0\n")
    (port / "port_xmit_data").write_text("0\n")
    reader = NetworkReader(tmp_path, lambda: next(clock))
    assert reader.read() == (0.0, 0.0)
    counters["eth0"] = (2_000, 4_000)
    (port / "port_rcv_data").write_text("25000\n")
    assert reader.read() == (200 + 10_000, 100)
    counters["eth0"] = (0, 0)  # a driver was loaded again
    assert reader.read() == (0, 0)


def test_the_size_of_eight_gpus() -> None:
    """A report of a node with eight busy GPUs grows by less than 900 bytes."""
    gpus = tuple(msgspec.structs.replace(AT_WORK, index=at, usual_power=650) for at in range(8))
    disks = read_disks(["/"])
    figures = Figures(
        12_345.6,
        gpus,
        disks,
        host_memory_used=900 << 30,
        host_memory_total=2_000 << 30,
        network_received=9e9,
        network_sent=9e9,
    )
    text = json.dumps(msgspec.to_builtins(figures))
    assert len(text) < 900
    assert msgspec.convert(json.loads(text), Figures) == figures
