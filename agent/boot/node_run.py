"""What both stories stand on: the clock, the folder, this node's address, and the way out."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.base.errors import PreflightError, UnavailableError
from agent.base.outcome import Outcome, stopped
from agent.node.addresses import source_towards
from agent.record.log import keep_in, say
from agent.record.waits import Narrator
from agent.runtime import orphans
from agent.runtime.names import resolve
from agent.runtime.process import Child
from agent.runtime.waiting import NotYet, TimedOutError, until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.decisions.shared import Said, Wait
    from agent.plan.plan import Address, Plan
    from agent.record.run_folder import RunFolder
    from agent.settings.redact import Redactor


class Stage:
    """One run on one node."""

    def __init__(self, plan: Plan, redactor: Redactor, folder: RunFolder, started: float) -> None:
        self.plan = plan
        self.redactor = redactor
        self.folder = folder
        self._started = started
        self._narrator = Narrator(folder.record, say)
        keep_in(folder.file("agent.log"))

    def now(self) -> float:
        """Return the run's clock: seconds since the agent's start."""
        return time.monotonic() - self._started

    def record(self, kind: str, **data: object) -> None:
        """Keep an event for later."""
        self.folder.record({"at": round(self.now(), 3), "event": kind, **data})

    def speak(self, said: Said) -> None:
        """Log a decision's sentence."""
        say(said.sentence, said.level)

    def show_waits(self, waits: tuple[Wait, ...]) -> None:
        """Tell of what is waited for, as it changes."""
        self._narrator.tell(waits, self.now())

    def patience(self, deadline: float | None) -> float | None:
        """Return how long to wait for an event: to the deadline, or until waits must be told."""
        return self._narrator.patience(deadline, self.now())

    async def start(
        self,
        name: str,
        argv: list[str],
        env: Mapping[str, str],
        log: str,
        *,
        rest_stays: bool = False,
    ) -> Child:
        """Start a child whose output goes to a file of the run folder."""
        file = partial(self.folder.file, log)
        child = await Child.start(name, argv, env, file, rest_stays=rest_stays)
        self.record("started", name=name, pid=child.pid)
        return child

    async def run_shell(self, name: str, command: str, env: Mapping[str, str], log: str) -> str:
        """Run a shell command to its end; return '' or how it failed."""
        say(f"{name}: running (output in {log})")
        # It may leave a server running, as the example of Search-R1 does.
        child = await self.start(name, ["/bin/sh", "-c", command], env, log, rest_stays=True)
        try:
            code = await child.wait()
        finally:
            with anyio.CancelScope(shield=True):
                if child.running:
                    await child.stop(1.0)
        return "" if code == 0 else child.end_sentence(code)

    async def sweep(self, limit: float) -> None:
        """End whatever of ours is left."""
        for name in await orphans.stop_descendants(limit):
            say(f"had to kill {name}", "warning")


async def find_own_address(address: Address, addresses: tuple[str, ...], limit: float) -> str:
    """Return this node's address; where a name must tell it, wait until it does."""
    if address.ip is not None:
        return address.ip

    async def check() -> str | NotYet:
        if address.towards is not None:
            return await _by_route(address.towards)
        return await _by_names(address, addresses)

    try:
        return await until(check, limit, step=0.1)
    except TimedOutError as error:
        if "no address of this node" in error.evidence:
            raise _not_ours(address, error.evidence, addresses) from None
        raise UnavailableError(
            f"this node's address could not be found as {address.how}",
            why=error.evidence,
            remedy="Check DNS, or set AGENT_NODE_IP"
            if address.towards
            else "Check HEAD_POD_ID and DNS, or set AGENT_NODE_IP",
            culprit="DNS",
        ) from None


async def _by_route(host: str) -> str | NotYet:
    found = await resolve(host)
    if isinstance(found, str):
        return NotYet(found)
    return source_towards(found[0]) or NotYet(f"no route to {host} ({found[0]})")


async def _by_names(address: Address, addresses: tuple[str, ...]) -> str | NotYet:
    evidence = []
    for name in address.names:
        found = await resolve(name)
        if isinstance(found, str):
            evidence.append(found)
            continue
        mine = next((a for a in found if a in addresses), None)
        if mine is not None:
            return mine
        evidence.append(f"{name} is {', '.join(found)}, no address of this node")
        if address.must_be_own:
            raise _not_ours(address, evidence[-1], addresses)
    return NotYet("; ".join(evidence))


def _not_ours(address: Address, evidence: str, addresses: tuple[str, ...]) -> PreflightError:
    own = ", ".join(addresses) or "none"
    return PreflightError(
        f"this node is not the head it is taken for ({address.how})",
        why=f"{evidence} (it has: {own})",
        remedy="On the head, HEAD_POD_ID or AGENT_HEAD must name this node; on a worker "
        "set RAY_WORKER=1",
        culprit="HEAD_POD_ID",
    )


class StopSwitch:
    """The first request to stop, for the time before a story listens for it."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._scope: anyio.CancelScope | None = None

    def ask(self, signum: int) -> None:
        """Note the request and end what is under way."""
        self.signum = signum
        if self._scope is not None:
            self._scope.cancel()

    def guard(self) -> anyio.CancelScope:
        """Return a scope that a request to stop cancels."""
        self._scope = anyio.CancelScope()
        if self.signum is not None:
            self._scope.cancel()
        return self._scope

    def outcome(self, *, expected: bool) -> Outcome:
        """Return the end that was asked for."""
        assert self.signum is not None  # noqa: S101 - asked only after a guard was cancelled
        return stopped(self.signum, expected=expected)


def as_record(outcome: Outcome) -> dict[str, object]:
    """Return an outcome as an event's data."""
    return {**asdict(outcome), "kind": outcome.kind.value}


async def stop_ray(child: Child, grace: float) -> None:
    """Stop this node's Ray."""
    await child.stop(grace, leader_ends_group=True)
