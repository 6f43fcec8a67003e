"""Runs worlds: product code uses a world instead of this machine."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import TYPE_CHECKING
from unittest.mock import patch

from msgspec.structs import replace

from support.simulated import network as net
from support.simulated.machines import LateFile, in_thread
from support.simulated.platforms import RULES
from support.simulated.setups import GIVEN, Setup, setup_of
from support.simulated.virtual import HERE, LocalTime, VirtualLoop
from support.simulated.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_AGAIN = "POD_AGENT_WORLDS={seed} .venv/bin/pytest tests/unit/decisions/test_worlds.py"


def _read(path: object) -> str:
    files = HERE.get().files
    if str(path) not in files:
        raise FileNotFoundError(str(path))
    return files[str(path)]


def _write(path: object, text: str, *, durable: bool = True) -> None:  # noqa: ARG001 - as written
    HERE.get().files[str(path)] = text


class _Boot:
    """Replaces the class that defines a boot of the machine."""

    @property
    def boot_id(self) -> str:
        """Return the ID of this boot of this machine."""
        machine = HERE.get()
        return f"{machine.name}-{machine.boots}"


SEAMS: dict[str, object] = {
    "aiohttp.ClientSession": net.Session,
    "anyio.to_thread.run_sync": in_thread,
    "agent.port.client.KeepaliveConnector": lambda **_options: None,
    "agent.port.client.resolve": net.resolve,
    "agent.port.client.port_answers": net.port_answers,
    "agent.port.client.source_towards": net.source_towards,
    "agent.run.silent_nodes.port_answers": net.port_answers,
    "agent.run.silent_nodes.reply_evidence": net.reply_evidence,
    "agent.run.run_keeper.ItemWriter": LateFile,
    "agent.run.worker.in_thread": in_thread,
    "agent.record.files.read_small": _read,
    "agent.record.files.write_atomically": _write,
    "agent.record.node_record.read_pid_space": _Boot,
    "agent.run.restarts.PastEnd.save": lambda end, root, node: end.write(
        root / ".ends" / f"{node}.json"
    ),
    **{
        f"agent.{name}.time": LocalTime()
        for name in (
            *("run.run_keeper", "record.node_record", "port.reports", "run.worker"),
            *("port.client", "run.restarts"),
        )
    },
}
"""The functions by which product code uses the machine: time, disk and network."""


@contextmanager
def in_a_world() -> Iterator[None]:
    """Let product code use a world instead of this machine."""
    with ExitStack() as stack:
        for name, new in SEAMS.items():
            stack.enter_context(patch(name, new))
        yield


def play(seed: int, setup: Setup | None = None) -> World:
    """Run a world, and return it."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(_played(seed, setup or setup_of(seed), loop))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()


async def _played(seed: int, setup: Setup, loop: VirtualLoop) -> World:
    world = World(seed, setup, loop)
    await world.run()
    return world


def on_platforms(seed: int) -> Setup:
    """Return a world whose platform starts containers again by its own rule."""
    platform = RULES[seed % len(RULES)]
    of = next(one for one in map(setup_of, count(seed, 10_000)) if one.kind != GIVEN)
    return replace(of, platform=platform)


def broken_rules(seeds: Iterable[int], setup: Callable[[int], Setup] = setup_of) -> str:
    """Run worlds; return the broken rules by world, and the first history, or ''."""
    broken, story = [], ""
    with in_a_world():
        for seed in seeds:
            world = play(seed, setup(seed))
            if world.rules.broken:
                again = _AGAIN.format(seed=seed)
                broken.append(f"seed {seed} ({again}): {world.rules.broken[0]}")
                story = story or world.story()
    return "\n".join([story, *broken]) if broken else ""
