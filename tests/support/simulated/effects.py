"""The effects of an agent on a simulated machine, in the form in which agents take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import anyio

from agent.node.limits import OomKills
from agent.node.read_figures import HostMemory
from agent.port.node_network import Network
from agent.run.effects import Disk, Effects, MachineEffects, Processes
from agent.run.late_effects import LateEffects
from agent.run.node_figures import Sources
from support.simulated import disks, network, programs, virtual
from support.simulated.disks import DrivenNodeRecorder, DrivenWriter
from support.simulated.virtual import LIFE, here

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anyio.abc import TaskStatus

    from agent.node.figures import DiskFigures
    from agent.plan.plan import Plan


async def watch_signals(
    stop: Callable[[int], None],
    notify: object,
    record_kill: object = None,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Take signals that ask for a stop."""
    del notify, record_kill
    life = LIFE.get()
    assert life is not None
    life.agent.handle_stops(stop)
    task_status.started()
    await anyio.sleep_forever()


def _nothing(*_: object, **_named: object) -> None:
    """Do nothing."""


class CpuUse:
    """What works for the job on a machine."""

    async def sample(self, submission_id: str | None) -> str:
        """Return what works for the job here, or ''."""
        del submission_id
        return "it works" if here().world.rules.job_works else ""


class Output:
    """Replaces copies of the job's output: simulated jobs write none."""

    def __init__(self, source: Any, _preamble: object) -> None:  # noqa: ANN401 - a path, or in memory
        self.path = getattr(source, "path", source)

    def __getattr__(self, _name: str) -> Callable[..., None]:
        """Copy nothing."""
        return _nothing


def _path(text: str) -> Path:
    """Return where a path is on the data disk of this machine."""
    machine = here()
    return machine.world.data_of(machine) / text.strip("/")


class Figures(Sources):
    """The figures of a simulated machine: those of the real one would take a third of the time."""

    def __init__(self, plan: Plan, run_folder: Callable[[], Path]) -> None:
        super().__init__(plan, run_folder)
        self.memory = lambda: HostMemory(used=1 << 30, total=1 << 34)
        self.network = lambda: (0.0, 0.0)
        self.programs = dict

    def disks(self) -> tuple[DiskFigures, ...]:
        """Return none."""
        return ()


async def _prune_nothing(_folder: str, _best_effort: object) -> None:
    """Do nothing: no earlier Ray has left a session."""


async def hold_nothing(outcome: object, container: object, stopped: object, others: object) -> None:
    """Do nothing: the world's platform holds a container."""
    del outcome, container, stopped, others


PROCESSES = Processes(
    start=cast("Any", programs.start_child),
    adopt=cast("Any", programs.adopt),
    watch_signals=watch_signals,
    descendants=cast("Any", programs.list_descendants),
    reap=_nothing,
    kill_tree=programs.kill_tree,
    find_driver=programs.find_driver,
    find_first_rank=programs.find_driver,
    terminate_driver=programs.terminate_driver,
    kill_leftovers=programs.kill_leftovers,
    job_processes=lambda _job: [],
    cpu_use=cast("Any", CpuUse),
    watch_ray_parts=programs.watch_parts,
    watch_ray_helpers=cast("Any", programs.watch_helpers),
    oom_kills=lambda: OomKills(0, of_container=True),
    cpu_of=lambda _pid: 0.0,
)

MACHINE = MachineEffects(
    kernel_log="/dev/null",
    figures=Figures,
    raise_open_files=_nothing,
    stale_ray=lambda _folder, *, everything: [],  # noqa: ARG005 - as the real one
    taken_ports=lambda _ports: {},
    secure_folder=_nothing,
    prune_sessions=_prune_nothing,
)

DISK = Disk(
    node_recorder=DrivenNodeRecorder,
    run_writer=DrivenWriter,
    log_to_file=_nothing,
    write=disks.write_atomically,
    path=_path,
)

NETWORK = Network(
    resolve=network.resolve,
    source_towards=network.source_towards,
    is_bindable=lambda _ip: False,
    bind=cast("Any", network.bind),
    port_answers=network.port_answers,
)

LATE = LateEffects(
    copy_output=cast("Any", Output),
    open_session=cast("Any", lambda _source, _timeout: network.Session()),
    reply_evidence=network.reply_evidence,
    download_sample=network.download_sample,
    open_port=cast("Any", network.open_port),
    listen=cast("Any", network.listen),
)

SIMULATED = Effects(
    clock=virtual.monotonic,
    processes=PROCESSES,
    machine=MACHINE,
    disk=DISK,
    network=NETWORK,
    late=lambda: LATE,
)
"""What the shipped head and worker get in a world; each acts on the machine on which it runs."""
