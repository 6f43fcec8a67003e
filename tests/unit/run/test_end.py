"""One end of a run: bundle, then record, then the container is held if it must be."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from agent.base import ends
from agent.decisions.shared import StopAsked, Tick
from agent.processes import parent
from agent.record.node_record import own_record
from agent.run import holding
from agent.run.end import bug, end_given_up, end_role, end_run
from agent.run.restarts import QUICK_RESTARTS, Container, Restarts, container_of, hold_by_setting
from agent.settings.load import settings_for_end
from support.node_runs import node_run_with
from support.worlds import POD, plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.base.ends import Outcome

DONE = ends.JOB_SUCCEEDED.outcome(before="")
LOST = ends.RAY_LOST_ON_HEAD.outcome(evidence="killed")


def restarts_in(root: Path, *, holds: bool) -> Restarts:
    """Return the restarts of a container that its platform starts again."""
    return Restarts(root, "pod", "digest", is_on=True, holds=holds, longest=600.0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("outcome", "on_done", "quick_restarts", "is_held"),
    [
        (DONE, "hold", 0, True),
        (DONE, "exit", 0, False),
        (LOST, "hold", 0, False),
        (LOST, "hold", QUICK_RESTARTS, True),
        (LOST, "exit", QUICK_RESTARTS, False),
    ],
)
async def test_which_ends_hold_the_container(
    tmp_path: Path, outcome: Outcome, on_done: str, quick_restarts: int, *, is_held: bool
) -> None:
    """A verdict does, and an end that restarts only repeat; the outcome names the bundle."""
    for _ in range(quick_restarts):
        restarts_in(tmp_path, holds=True).record("run", outcome)
    restarts = restarts_in(tmp_path, holds=on_done != "exit")
    steps: list[tuple[str, str]] = []
    hinted = replace(outcome, remedy="The logs are in bundle.tar.gz")

    async def bundle(_outcome: Outcome) -> Outcome:
        return hinted

    def record(recorded: Outcome) -> None:
        restarts.record("run", recorded)
        steps.append(("recorded", recorded.remedy))

    async def hold(held: Outcome, *_args: object) -> None:
        steps.append(("held", held.remedy))

    container = Container(settings_for_end({}), {}, on_done, restarts, hold)
    assert await end_run(outcome, container, bundle=bundle, record=record) == hinted
    all_steps = [("recorded", hinted.remedy), ("held", hinted.remedy)]
    assert steps == (all_steps if is_held else all_steps[:1])


@pytest.mark.anyio
async def test_a_role_is_held_until_it_is_asked_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """outcome.json is on disk before the pod is reported as held; other events do not end that."""
    events: list[object] = [Tick(), StopAsked(15)]
    reported: list[bool] = []
    restarts = restarts_in(tmp_path, holds=True)
    container = Container(settings_for_end({}), {}, "hold", restarts, hold_by_setting)
    run = node_run_with(tmp_path, (), container)
    monkeypatch.setattr(
        holding, "say", lambda *_: reported.append((run.folder.path / "outcome.json").exists())
    )

    async def next_event() -> object:
        await anyio.lowlevel.checkpoint()
        return events.pop(0)

    assert await end_role(run, DONE, next_event=next_event) == DONE
    assert (events, {*reported}) == ([], {True})


def test_an_agent_killed_too_often_leaves_its_outcome(tmp_path: Path) -> None:
    """The folder of the killed agent gets outcome.json; without a folder nothing is written."""
    environ = {"RUNPOD_POD_ID": "podaaa", "AGENT_LOG_DIR": str(tmp_path), "EXPECTED_WORKERS": "0"}
    plan = plan_of(environ, POD, ["train"])
    container = container_of(plan, environ, ["train"])._replace(killed_agents=(os.getpid(),))
    assert end_given_up(plan, container, "SIGKILL", 4).exit_code == parent.GAVE_UP
    assert not [*tmp_path.glob("**/outcome.json")]

    node = plan.topology.node_name
    folder = tmp_path / "run-1" / node
    folder.mkdir(parents=True)
    assert own_record(node, "run-1").write(folder / "node.json") is None
    outcome = end_given_up(plan, container, "SIGKILL", 4)
    written = json.loads((folder / "outcome.json").read_text())
    assert (written["exit_code"], written["reason"]) == (outcome.exit_code, outcome.reason)


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
