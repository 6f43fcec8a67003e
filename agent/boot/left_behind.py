"""What a killed agent left behind: its Ray and services live on, and are taken over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.node.cgroups import oom_kills
from agent.plan.plan import RAY
from agent.record.log import say
from agent.record.node_record import NodeRecord, living, run_of
from agent.runtime import orphans, parent
from agent.runtime.memory_watch import sentence
from agent.settings.jobs import TORCHRUN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from agent.record.run_folder import RunFolder
    from agent.runtime.process import Child


class LeftBehind:
    """A killed agent's record, and those of its processes that go on."""

    def __init__(self, record: NodeRecord, names: Iterable[str], memory: str = "") -> None:
        """Keep what lives under these names; what is of no use to anybody is ended.

        `memory` is what the kernel did in this container meanwhile for want of memory, or ''.
        A node whose Ray is gone begins anew, services included; one that started none, as a node
        that is there for a service only, keeps them.
        """
        self.record = record
        self._memory = memory
        self._living = {one.name: one for one in living(record) if one != record.agent}
        lost_ray = RAY not in self._living and RAY in {one.name for one in record.started}
        useful = set() if lost_ray else {*names}
        for name in {*self._living} - useful:
            orphans.kill_tree(self._living.pop(name).pid)
        if TORCHRUN in {one.name for one in record.started}:  # ranks are in sessions of their own
            from agent.work.torchrun import RANKS_MARK  # noqa: PLC0415 - most runs need none of it

            orphans.kill_marked(RANKS_MARK, lambda id_: id_.startswith(f"{record.run_id}-"))

    @property
    def has_ray(self) -> bool:
        """Say whether this node's Ray lives on, and nobody has taken it over yet."""
        return RAY in self._living

    @property
    def out_of_memory(self) -> str:
        """Return what the kernel did where memory ran out and Ray is gone since; else ''."""
        return "" if self.has_ray else self._memory

    def end_ray(self) -> None:
        """End a Ray that is of no use any more, and what a Ray that is gone left running."""
        from agent.runtime import driver  # noqa: PLC0415 - most runs need none of it

        one = self._living.pop(RAY, None)
        if one is not None:
            say(f"ending {RAY} (pid {one.pid}), which an earlier attempt ran on", "warning")
            orphans.kill_tree(one.pid)
        driver.end_all()

    @property
    def names(self) -> frozenset[str]:
        """Return what lives on and was not taken over yet."""
        return frozenset(self._living)

    def adopt(self, name: str, log: Callable[[], Path]) -> Child | None:
        """Take a process over, once."""
        one = self._living.pop(name, None)
        if one is None:
            return None
        from agent.runtime.adopted import adopt  # noqa: PLC0415 - most runs need none of it

        return adopt(name, one.pid, one.start, log)


def run_to_go_on_with(root: Path, node: str) -> str:
    """Return the run in which the agent was killed in whose stead this one was started, or ''."""
    killed = parent.former()
    return run_of(root, node, killed) if killed else ""


def left_behind(folder: RunFolder, names: Iterable[str]) -> LeftBehind | None:
    """Return what was left here by the agents in whose stead this one was started, if any was.

    The last of them may have left no record, where the disk was full: then an earlier one's tells.
    """
    record, killed = folder.former, parent.former()
    if record is None or record.ended or record.agent.pid not in killed:
        return None
    kills = oom_kills()
    more = kills.number - record.oom_kills
    told = sentence(kills, more) if more > 0 else ""
    why = f" ({told})" if told else ""
    say(f"the agent (pid {killed[0]}) was killed{why}: this one goes on in its stead", "warning")
    return LeftBehind(record, names, told if kills.of_container else "")
