"""A stop during a submission: canceled before Ray has the job, awaited after that."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import anyio

from agent.run.head_job import SubmissionTask, stop_job

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.bridge.link import RayLink


class Link:
    """A link that notes what is ordered through it."""

    def __init__(self) -> None:
        self.orders: list[str] = []

    async def stop_job(self, job_id: str) -> None:
        """Note it."""
        self.orders.append(f"stop {job_id}")


def nothing(_event: object) -> None:
    """Report no event: no driver is signaled here."""


def orders_of(make: Callable[[], Awaitable[str]], *, is_slow: bool = False) -> list[str]:
    """Return what is ordered where a job is stopped as its submission is made so."""
    link, submitting = Link(), SubmissionTask()
    handing_over = anyio.Event()

    async def submit() -> None:
        made = await submitting.make(make)
        handing_over.set()
        if is_slow:
            await anyio.wait_all_tasks_blocked()
        link.orders.append("given up" if made is None else f"submit {made}")

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            submitting.start(tasks, submit)
            if is_slow:
                await handing_over.wait()
            with anyio.fail_after(20):
                await stop_job(
                    cast("RayLink", link),
                    "run-1",
                    send=nothing,
                    task=submitting,
                    terminate=str,
                )

    anyio.run(scenario)
    return link.orders


def test_a_submission_whose_disk_stalls_is_given_up() -> None:
    """The thread that waits for the disk is left to it; nothing is submitted, nothing stopped."""
    answers = threading.Event()

    async def stalled() -> str:
        await anyio.to_thread.run_sync(answers.wait, abandon_on_cancel=True)
        return "run-1"

    try:
        assert orders_of(stalled) == ["given up"]
    finally:
        answers.set()


def test_a_submission_that_is_handed_over_is_stopped_after_that() -> None:
    """Else the job would be submitted after the order to stop it."""

    async def at_once() -> str:
        return "run-1"

    assert orders_of(at_once, is_slow=True) == ["submit run-1", "stop run-1"]
