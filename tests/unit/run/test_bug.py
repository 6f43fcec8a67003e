"""The sentence of exit code 70 names the exception, however it was wrapped."""

from __future__ import annotations

import anyio
import pytest

from agent.run.end import bug


async def _in_task_groups(failure: Exception) -> None:
    async def fail() -> None:
        raise failure

    async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
        outer.start_soon(anyio.sleep_forever)
        inner.start_soon(fail)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (KeyError("epoch"), "KeyError: 'epoch'"),
        (ValueError("first line\nsecond line"), "ValueError: first line"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_a_bug_is_reported_with_its_own_exception(failure: Exception, words: str) -> None:
    """A task group wraps the exceptions of its tasks."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - anything may be a bug
        anyio.run(_in_task_groups, failure)
    for one in (failure, caught.value):
        end = bug(one)
        assert (end.exit_code, end.reason) == (70, f"a bug in the agent: {words}")
