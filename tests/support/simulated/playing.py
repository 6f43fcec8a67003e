"""Runs worlds: shipped agents on simulated machines.

What runs is `begin`, `run_in_loop` and `end_role` of agent/run, with everything that they call:
HeadAgent and WorkerAgent, the records and their files, the protocol, the links. They reach a
machine by `Effects` (agent/run/effects.py), for which effects.py gives those of a world. `BY_NAME`
is the rest, and says why it is no parameter.
"""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from msgspec.structs import replace

from agent.record.events import Dropped
from agent.record.log_dir import log_dir
from agent.run.node_run import NodeRun
from support.simulated import disks, programs, virtual
from support.simulated.agents import Watched
from support.simulated.platforms import RULES
from support.simulated.setups import GIVEN, Setup, setup_of
from support.simulated.virtual import LIFE, VirtualLoop, here
from support.simulated.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_AGAIN = "POD_AGENT_WORLDS={seed} .venv/bin/pytest tests/unit/decisions/test_worlds.py"
_LAST_STEPS = 3600.0  # Seconds of the world for its tasks to end
_decide = NodeRun.decide


# --- what is watched ------------------------------------------------------------------------------


def decide(
    run: NodeRun,
    decide: Callable[..., Any],
    from_outside: tuple[type, ...],
    state: object,
    event: object,
) -> tuple[Any, Any, tuple[Any, ...]]:
    """Decide as shipped, and look at the decision."""
    event, after, actions = _decide(run, decide, from_outside, state, event)
    life = LIFE.get()
    assert life is not None
    life.agent.decided(state, event, after, actions)
    return event, after, Watched.by(life.agent, actions)


class Recorder:
    """Replaces the recorder of events: a dropped event is a bug."""

    def __init__(self, *_: object) -> None:
        """Accept the arguments of the real one."""

    def add(self, event: object) -> None:
        """Look at an event."""
        if isinstance(event, Dropped):
            here().world.fail(AssertionError(f"dropped: {event}"))

    def finish(self, _limit: float = 0.0) -> None:
        """Do nothing."""


def render(
    sentence: str, level: str, _mark: str = "", subject: str = "", *_: object, **__: object
) -> str:
    """Note a line of an agent's log."""
    sentence = f"{subject} {sentence}".strip()
    machine = virtual.HERE.get()
    if machine is not None and not virtual.is_over():
        machine.world.said(machine, sentence, level)
    return sentence


# --- effects --------------------------------------------------------------------------------------


def _nothing(*_: object, **_named: object) -> None:
    """Do nothing."""


def draw_hex(size: int) -> str:
    """Return random digits that the seed decides; outside of worlds any."""
    machine = virtual.HERE.get()
    if machine is None:
        return os.urandom(size).hex()
    return "".join(machine.world.random.choice("0123456789abcdef") for _ in range(2 * size))


BY_NAME: dict[str, object] = {
    # time
    "time.time": virtual.wall,
    "time.time_ns": virtual.wall_ns,
    "time.monotonic": virtual.monotonic,
    "time.gmtime": virtual.gmtime,
    # threads
    "agent.record.background.start_thread": disks.start_thread,
    # files
    **{
        f"agent.record.{name}.write_atomically": disks.write_atomically
        for name in ("files", "outcome_file", "checkpoint_folder", "run_keys")
    },
    **{
        f"agent.{name}.record_memory": disks.MachineMemory()
        for name in ("record.files", "record.node_record")
    },
    # processes
    "agent.record.node_record.read_stat": programs.read_stat,
    "agent.record.node_record.read_pid_space": lambda: here().place,
    "agent.record.run_record.read_pid_space": lambda: here().place,
    "agent.record.node_record.os.getpid": programs.own_pid,
    # what takes most of the time of a world: rows searched in logs
    "agent.run.diagnose.search_logs": _nothing,
    # chance
    "secrets.token_hex": draw_hex,
}
"""What remains to be replaced by name, and what replaces it.

Time, threads, chance and the identity of a process are not of one run: whatever file uses them gets
a machine's own. Files of records are written by a function that all records share, and kept in
memory by an object of the process.
"""

WATCHED: dict[str, object] = {
    "agent.run.node_run.NodeRun.decide": decide,
    "agent.run.node_run.EventRecorder": Recorder,
    "agent.record.log._log._render": render,
    "agent.record.log._log._stderr.put": _nothing,
    "agent.record.log._log._file_writer.put": _nothing,
}
"""What is looked at in a world, by name."""


@contextmanager
def in_a_world() -> Iterator[None]:
    """Let product code use a world instead of this machine."""
    _, _, mode = log_dir.rules
    with ExitStack() as stack:
        stack.callback(log_dir.obey, "", None, mode)
        for name, new in {**BY_NAME, **WATCHED}.items():
            stack.enter_context(patch(name, new))
        yield


def play(seed: int, setup: Setup | None = None) -> World:
    """Run a world, and return it."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        with warnings.catch_warnings():
            # A task that is canceled before its first step, as many are with a killed agent.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            world = loop.run_until_complete(_played(seed, setup or setup_of(seed), loop))
            _clear(world, loop)
            gc.collect()  # else a later test collects them, and fails by the warning
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    return world


def _clear(world: World, loop: VirtualLoop) -> None:
    """End all tasks, those of killed agents too, and remove the disks.

    A world ends once a rule is broken: a process that was stopped then goes on for ever.
    """
    world.clear()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_LAST_STEPS))
    endless = [task for task in left if not task.done()]
    assert world.rules.broken or not endless, endless
    world.remove()


async def _played(seed: int, setup: Setup, loop: VirtualLoop) -> World:
    world = World(seed, setup, loop)
    await world.run()
    return world


def on_platforms(seed: int) -> Setup:
    """Return a world whose platform starts containers again by its own rule.

    A run without a job ends only when it is stopped, and the platform would start it again.
    """
    platform = RULES[seed % len(RULES)]
    worlds = map(setup_of, count(seed, 10_000))
    of = next(one for one in worlds if one.kind != GIVEN and one.has_job)
    return replace(of, platform=platform)


def broken_rules(seeds: Iterable[int], setup: Callable[[int], Setup] = setup_of) -> str:
    """Run worlds; return the broken rules by world, and the first history, or ''."""
    broken = []
    transcript = ""
    with in_a_world():
        for seed in seeds:
            world = play(seed, setup(seed))
            if world.rules.broken:
                again = _AGAIN.format(seed=seed)
                broken.append(f"seed {seed} ({again}): {world.rules.broken[0]}")
                transcript = transcript or world.transcript()
    return "\n".join([transcript, *broken]) if broken else ""
