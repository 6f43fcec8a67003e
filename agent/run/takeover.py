"""Take over what a killed agent left in this container, and continue its run.

The parent process starts this agent in place of a killed one.

1. The killed agent's record (node.json) is found in its run folder, by the pids of killed agents.
   While it, outcome.json, or run.json on a head, cannot be read, it is read again for some seconds.
2. If its run was over, its outcome stands: nothing is started, what still runs is stopped (end.py).
3. Otherwise this agent continues the run. Of the processes in that record it keeps Ray and the
   services, if Ray still runs, and adopts each where it would have started it; others are killed.
4. Without a readable record, everything that killed agents left is killed: the run cannot be
   continued here, and its job must not run beside the next one. A job on a given Ray cannot be
   killed so: its run goes on without run.json, and follows its newest job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import psutil

from agent.base import times
from agent.base.text import listed
from agent.job.node_command import NodeCommand
from agent.job.torchrun_command import Torchrun
from agent.plan.plan import RAY
from agent.processes import process
from agent.processes.oom import oom_sentence
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.files import NoRecord
from agent.record.log import say
from agent.record.node_record import (
    NODE_FILE,
    NodeRecord,
    folder_of,
    running_processes,
    why_unreadable,
)
from agent.record.outcome_file import OUTCOME_FILE, read_outcome
from agent.record.run_record import RUN_FILE, RunRecord
from agent.run.effects import REAL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.processes.process import Child
    from agent.record.run_folder import RunFolder
    from agent.run.effects import Processes


class KilledAgent(NamedTuple):
    """The run of the agent that this one replaces."""

    run_id: str = ""  # '' if there is none, or no record of it
    outcome: Outcome | None = None  # if its run was over
    wrote_outcome: bool = False  # True if outcome.json has it


async def find_killed_agent(
    root: Path, node: str, killed: Collection[int], *, is_head: bool
) -> KilledAgent:
    """Return the run, among those in `root`, that the agents with these pids were in.

    This waits while their records cannot be read: an error of a disk may pass. Without them another
    run would begin, and its job must not run beside theirs.
    """

    async def can_be_read() -> bool | NotYet:
        why = _why_unreadable(root, node, killed, is_head=is_head)
        return NotYet(why) if why else True

    try:
        await until(can_be_read, times.RECORD_UNREADABLE, on_evidence=_say_unreadable)
    except TimedOutError as error:
        say(f"no longer waiting for a record of the killed agent: {error}", "warning")

    folder = folder_of(root, node, killed)
    if folder is None:
        return KilledAgent()
    run_id = folder.parent.name
    written = read_outcome(folder)
    if not isinstance(written, NoRecord):
        return KilledAgent(run_id, written, wrote_outcome=True)
    record = NodeRecord.read_patiently(folder / NODE_FILE)
    return KilledAgent(run_id, record.ending if isinstance(record, NodeRecord) else None)


def _say_unreadable(why: str) -> None:
    say(f"a record of the killed agent cannot be read, reading it again: {why}", "warning")


def _why_unreadable(root: Path, node: str, killed: Collection[int], *, is_head: bool) -> str:
    """Return why the run of a killed agent cannot be continued yet, or ''."""
    folder = folder_of(root, node, killed)
    if folder is None:
        return why_unreadable(root, node)
    records: list[tuple[Path, Outcome | RunRecord | NoRecord]]
    records = [(folder / OUTCOME_FILE, read_outcome(folder))]
    if is_head:
        run_file = folder.parent / RUN_FILE
        records.append((run_file, RunRecord.read(run_file)))
    for path, record in records:
        if isinstance(record, NoRecord) and not record.is_missing:
            return f"{path}: {record.why}"
    return ""


def find_surviving_processes(
    folder: RunFolder,
    names: Iterable[str],
    killed: Sequence[int],
    processes: Processes = REAL.processes,
) -> SurvivingProcesses | None:
    """Return what can be used of what the killed agents left running, if any are replaced here.

    Processes with other names are killed. The last of these agents may have no record, where the
    disk was full: then the record of an earlier one counts.
    """
    # Does this node's record belong to one of the killed agents?
    record = folder.former
    if record is None or record.ended or record.agent.pid not in killed:
        if killed:
            _end_unrecorded(processes)
        return None

    # Was memory short when it was killed?
    kills = processes.oom_kills()
    kills_since = kills.number - record.oom_kills
    evidence = oom_sentence(kills, kills_since) if kills_since > 0 else ""
    why = f" ({evidence})" if evidence else ""
    say(f"the agent (pid {killed[0]}) was killed{why}: this one continues its run", "warning")
    memory = evidence if kills.of_container else ""
    surviving = SurvivingProcesses(record, processes, memory)
    surviving.end_useless(names)
    return surviving


class SurvivingProcesses:
    """A killed agent's node record, and those of its child processes that still run."""

    def __init__(
        self, record: NodeRecord, processes: Processes = REAL.processes, memory: str = ""
    ) -> None:
        self.record = record
        self.memory = memory
        """The kernel's out-of-memory evidence in this container since the kill, or ''."""
        self._processes = processes
        self.running = {
            known.name: known for known in running_processes(record) if known != record.agent
        }
        """The processes that run and were not adopted yet."""

    def end_useless(self, names: Iterable[str]) -> None:
        """Kill the processes without these names, and what runs of a share of the job.

        A node whose Ray has ended keeps nothing, not even services; a node that never started Ray
        keeps its services.
        """
        started = {known.name for known in self.record.started}
        has_lost_ray = RAY in started and not self.has_ray
        useful = set[str]() if has_lost_ray else {*names}
        for name in {*self.running} - useful:
            self._processes.kill_tree(self.running.pop(name).pid)

        # The processes of a share may have sessions of their own, as torchrun's ranks have.
        own_attempts = f"{self.record.run_id}-"
        descendants = self._processes.descendants
        for launcher in (Torchrun, NodeCommand):
            if launcher.name in started:
                process.kill_marked(
                    launcher.mark, lambda id_: id_.startswith(own_attempts), descendants
                )

    @property
    def has_ray(self) -> bool:
        """Return whether this node's Ray still runs and was not adopted yet."""
        return RAY in self.running

    @property
    def services(self) -> dict[str, int]:
        """Return the services that still run and were not adopted yet, with their generations."""
        known = self.running.values()
        return {one.name: one.generation for one in known if one.generation}

    def has_generation(self, generation: int) -> bool:
        """Return whether a worker's Ray of this generation still runs."""
        return self.has_ray and self.record.ray_generation == generation

    def end_ray(self) -> None:
        """Kill a Ray that cannot be used, and leftovers of a Ray that has ended."""
        ray = self.running.pop(RAY, None)
        if ray is not None:
            say(f"ending {RAY} (pid {ray.pid}), which an earlier attempt ran on", "warning")
            self._processes.kill_tree(ray.pid)
        self._processes.kill_leftovers()

    def adopt(self, name: str, log: Callable[[], Path]) -> Child | None:
        """Adopt a process, once."""
        known = self.running.pop(name, None)
        if known is None:
            return None
        return self._processes.adopt(name, known.pid, known.start, log)


def _end_unrecorded(processes: Processes) -> None:
    """End what killed agents left of a run that this agent does not continue."""
    leftovers = processes.descendants()
    if leftovers:
        what = "the agent was killed, and its run cannot be continued here: ending"
        say(f"{what} {listed(process.kill(leftovers))}", "warning")
        psutil.wait_procs(leftovers, timeout=times.DESCENDANTS_EXIT)
