"""One end of a run: the outcome is recorded first, and the container is held at most once."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from agent.base import ends
from agent.processes import parent
from agent.record.node_record import own_record
from agent.run import end as run_end
from agent.run.end import Container, container_of, end_given_up, end_run
from agent.run.restarts import QUICK_RESTARTS, Restarts
from agent.settings.load import settings_for_end
from support.worlds import POD, plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.base.ends import Outcome

DONE = ends.JOB_SUCCEEDED.outcome(before="")
LOST = ends.RAY_LOST_ON_HEAD.outcome(evidence="killed")


def restarts_in(root: Path, *, holds: bool) -> Restarts:
    """Return the restarts of a container that its platform starts again."""
    return Restarts(root, "pod", "digest", is_on=True, holds=holds, longest=600.0)


@pytest.mark.parametrize(
    ("outcome", "on_done", "quick_restarts", "was_held", "is_held"),
    [
        (DONE, "hold", 0, False, True),
        (DONE, "exit", 0, False, False),
        (DONE, "hold", 0, True, False),
        (LOST, "hold", 0, False, False),
        (LOST, "hold", QUICK_RESTARTS, False, True),
        (LOST, "hold", QUICK_RESTARTS, True, False),
        (LOST, "exit", QUICK_RESTARTS, False, False),
    ],
)
def test_which_ends_hold_the_container(  # noqa: PLR0913 - a table
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: Outcome,
    on_done: str,
    quick_restarts: int,
    *,
    was_held: bool,
    is_held: bool,
) -> None:
    """A verdict does, and an end that restarts only repeat, unless the role has held it."""
    for _ in range(quick_restarts):
        restarts_in(tmp_path, holds=True).record("run", outcome)
    restarts = restarts_in(tmp_path, holds=on_done != "exit")
    steps: list[str] = []

    def record(recorded: Outcome) -> None:
        restarts.record("run", recorded)
        steps.append("recorded")

    monkeypatch.setattr(run_end, "_hold", lambda _container, _outcome: steps.append("held"))
    container = Container(settings_for_end({}), {}, on_done, restarts)
    assert end_run(outcome, container, record, was_held=was_held) == outcome
    assert steps == (["recorded", "held"] if is_held else ["recorded"])


def test_an_agent_killed_too_often_leaves_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the killed agent gets outcome.json; without a folder nothing is written."""
    environ = {"RUNPOD_POD_ID": "podaaa", "AGENT_LOG_DIR": str(tmp_path), "EXPECTED_WORKERS": "0"}
    plan = plan_of(environ, POD, ["train"])
    container = container_of(plan, environ, ["train"])
    monkeypatch.setattr(parent, "former_agents", (os.getpid(),))
    assert end_given_up(plan, container, "SIGKILL", 4).exit_code == parent.GAVE_UP
    assert not [*tmp_path.glob("**/outcome.json")]

    node = plan.topology.node_name
    folder = tmp_path / "run-1" / node
    folder.mkdir(parents=True)
    assert own_record(node, "run-1").write(folder / "node.json") is None
    outcome = end_given_up(plan, container, "SIGKILL", 4)
    written = json.loads((folder / "outcome.json").read_text())
    assert (written["exit_code"], written["reason"]) == (outcome.exit_code, outcome.reason)
