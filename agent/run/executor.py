"""Make this node run what is wanted of it: Ray, services, prepare steps, and the job.

`apply` takes what is wanted now, by name the generation of each thing. What is not wanted any more,
or of an earlier generation, is ended; what is wanted and has not begun is started. A generation
starts once, and only after nothing of the former one is left. So a repeated or late message changes
nothing.

A thing runs as the task of its runner, which says how far it is, returns why it ended, and ends
what it started when it is canceled. It is over only once what it has left is cleared, too. Each
change is sent as one event with all things of this node, those that are over too: on the head to
its own decisions, on a worker to those of the worker, which report it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Protocol, TypedDict

import anyio
from msgspec.structs import replace

from agent.decisions.shared import ItemReport, ItemsReported, JobItem, JobWant, Step, Want
from agent.record.log import say

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from agent.base.ends import Outcome
    from agent.decisions.attempts import JobReport
    from agent.decisions.shared import Wants
    from agent.frameworks.recipe import JobBasis
    from agent.job.share import ShareEnd


class Details(TypedDict, total=False):
    """What a runner may say beside the step and its evidence, as the item has it."""

    share: ShareEnd
    doubt: str
    beside_job: bool
    memory: str
    output: str
    report: JobReport
    status_at: float
    basis: JobBasis
    words: str
    refusal: Outcome
    never: bool
    signaled: bool


class OnProgress(Protocol):
    """Says how far a thing is: ready, pending or lost, with the evidence; and what else of it."""

    def __call__(
        self, step: Step | None = None, evidence: str = "", /, **details: Unpack[Details]
    ) -> None:
        """Report it, if it has changed; without a step only the details."""


Runner = Callable[[str, "Want", OnProgress], Coroutine[None, None, str]]
"""Runs a thing, by its name, to its end; returns why it failed, or ''.

Canceled, it ends what it has started, within this node's own grace.
"""
UntilWanted = Callable[[str, Callable[["Want"], bool]], Coroutine[None, None, None]]
"""Waits until a thing, which goes on meanwhile, is wanted in a certain way."""
Clear = Callable[[OnProgress], Coroutine[None, None, None]]
"""Ends what a thing has left once it has ended; returns when nothing of it is left."""


def _leaves_nothing(_name: str) -> None:
    """Return that a thing leaves nothing once it has ended."""


class Executor:
    """What runs on this node, by name."""

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        runner_of: Callable[[str], Runner | None],
        send: Callable[[ItemsReported], None],
        clear_of: Callable[[str], Clear | None] = _leaves_nothing,
    ) -> None:
        """`runner_of` has no runner for a name that is not in this node's plan."""
        self._tasks = tasks
        self._runner_of = runner_of
        self._send = send
        self._clear_of = clear_of
        self._wants: Wants = {}
        self._items: dict[str, ItemReport] = {}
        self._running: dict[str, anyio.CancelScope] = {}
        self._clearing: dict[str, anyio.CancelScope] = {}
        self._is_closing = False
        self._changed = anyio.Event()
        self._applied = anyio.Event()

    def apply(self, wants: Wants) -> None:
        """Run what is wanted, and end everything else."""
        self._wants = wants
        self._applied.set()
        self._applied = anyio.Event()
        for name in {**self._items, **wants}:
            self._reconcile(name)

    def adopt(self, items: Iterable[ItemReport]) -> None:
        """Take over what an earlier agent left: what runs is ready, and its runner finds it."""
        for item in items:
            self._items[item.name] = item
            if item.is_running:
                self._begin(item.name, Want(item.generation), Step.READY)

    async def close(self) -> None:
        """End everything at once; return when all has ended. What is left ends with this agent."""
        self._is_closing = True
        self.apply({})
        for clearing in self._clearing.values():
            clearing.cancel()
        while self._running:
            await self._changed.wait()

    async def end(self, name: str) -> None:
        """End a thing before anything else is decided; return when nothing of it is left."""
        self._wants = {other: want for other, want in self._wants.items() if other != name}
        self._reconcile(name)
        await self.until_over(name)

    async def until_wanted(self, name: str, is_so: Callable[[Want], bool]) -> None:
        """Wait until a thing, which goes on meanwhile, is wanted in a certain way."""
        while name not in self._wants or not is_so(self._wants[name]):
            await self._applied.wait()

    async def until_over(self, name: str) -> None:
        """Wait until nothing of a thing is left."""
        while name in self._running:
            await self._changed.wait()

    def _reconcile(self, name: str) -> None:
        item = self._items.get(name)
        want = self._wants.get(name)
        if item is not None and item.is_running:
            if is_outdated(item, want):
                self._running[name].cancel()
        elif want is not None and is_new(want, item):
            self._begin(name, want)

    def _begin(self, name: str, want: Want, step: Step = Step.PENDING) -> None:
        new_item = JobItem if isinstance(want, JobWant) else ItemReport
        if want.is_over:
            why = "stopped before it began"
            self._report(new_item(name, Step.LOST, why, want.generation, was_stopped=True))
            return
        runner = self._runner_of(name)
        if runner is None:
            what = f"this node's plan has no {name!r} to run"
            say(f"what the head wants is refused: {what}", "warning")
            self._report(new_item(name, Step.LOST, what, want.generation))
            return
        self._running[name] = anyio.CancelScope()
        self._report(new_item(name, step, "", want.generation, is_running=True))
        self._tasks.start_soon(self._run, name, want, runner)

    async def _run(self, name: str, want: Want, runner: Runner) -> None:
        """Run one generation of a thing until nothing of it is left."""

        def progress(
            step: Step | None = None, evidence: str = "", /, **details: Unpack[Details]
        ) -> None:
            said = self._items[name] if step is None else self._said(name, step, evidence)
            self._report(replace(said, **details))

        failure: str | None = None
        try:
            with self._running[name]:
                failure = await runner(name, want, progress)
            await self._end(name, failure, progress)
        finally:
            del self._running[name]
            self._changed.set()
            self._changed = anyio.Event()
        self._report(replace(self._ended(name, failure), is_running=False))
        self._reconcile(name)  # a later generation may wait for this end

    async def _end(self, name: str, failure: str | None, progress: OnProgress) -> None:
        """Report that a thing has ended, and clear what it has left, unless this node ends."""
        clear = self._clear_of(name)
        if clear is None or self._is_closing:
            return
        self._report(self._ended(name, failure))
        with anyio.CancelScope() as self._clearing[name]:
            await clear(progress)
        del self._clearing[name]

    def _ended(self, name: str, failure: str | None) -> ItemReport:
        """Return a thing that has ended; what its runner said of its end stays."""
        if failure is None:
            stopped = self._said(name, Step.LOST, "its node stopped it")
            return replace(stopped, was_stopped=True)
        return self._said(name, Step.LOST if failure else Step.READY, failure)

    def _said(self, name: str, step: Step, evidence: str) -> ItemReport:
        return replace(self._items[name], step=step, evidence=evidence)

    def _report(self, item: ItemReport) -> None:
        """Send all that runs here, if it has changed."""
        if self._items.get(item.name) != item:
            self._items[item.name] = item
            self._send(ItemsReported(tuple(self._items.values())))


def is_outdated(item: ItemReport, want: Want | None) -> bool:
    """Return whether a running thing must end: it is not wanted, or anew."""
    return want is None or want.is_over or want.generation > item.generation


def is_new(want: Want, item: ItemReport | None) -> bool:
    """Return whether a wanted thing has not begun: a generation starts once."""
    return item is None or want.generation > item.generation
