"""Every example is started as its platform would, and planned on each node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from agent.checks.finding import Level
from agent.job.job import PLACEHOLDERS, fill
from agent.job.services import Placeholders
from support.example_table import EXAMPLE, PLATFORM, plan_of
from support.launches import EXAMPLES, TOKEN, Shell

if TYPE_CHECKING:
    from pathlib import Path

    from support.launches import Launch

pytestmark = pytest.mark.processes

PLACEHOLDER = re.compile(r"<[a-z][\w -]*>|TODO|\byour[-.]|\byou/|# change")


@pytest.mark.parametrize("path", EXAMPLE)
def test_an_example_runs_its_job(path: str, tmp_path: Path) -> None:
    """Each of its nodes is planned, the head has the framework's job, and no secret is visible."""
    launches = EXAMPLE[path].start(tmp_path)
    check_nodes(path, launches)
    check_job(path, launches)
    check_secrets(path, tmp_path)


def check_nodes(path: str, launches: list[Launch]) -> None:
    """The head is the first node, the others are its workers, and no check fails."""
    example = EXAMPLE[path]
    assert len(launches) == example.nodes
    plans = [plan_of(launch, example, rank) for rank, launch in enumerate(launches)]
    assert [plan.topology.is_head for plan in plans] == [True] + [False] * (example.nodes - 1)
    for plan in plans:
        platform = PLATFORM.get(example.cluster, example.cluster)
        assert plan.topology.platform.name == platform
        assert plan.topology.expected_workers == example.nodes - 1
        assert [finding for finding in plan.findings if finding.level is not Level.OK] == []
        assert plan.secret() == TOKEN
        assert plan.on_done == example.on_done
        assert plan.settings.stop_grace < example.grace
        assert plan.settings.job_retries == example.retries
        assert not [note for note in plan.notes if "not ours" in note]
        assert not {listener.port for listener in plan.listeners} & example.taken
        assert not (example.taken and plan.topology.owns_machine)


def check_job(path: str, launches: list[Launch]) -> None:
    """The job is the framework's, sized for the joined nodes, with its reward server."""
    example = EXAMPLE[path]
    job = plan_of(launches[0], example, 0).job
    assert job is not None
    if example.program is None:
        assert job.name == "rehearsal"
    else:  # by its recipe, which is sized without placeholders
        assert job.recipe is not None
        assert example.program in job.argv
    place = Placeholders(head_ip="10.0.0.1", log_dir="/logs")
    words = fill(job.argv, [8, 8], place, "http://10.0.0.1:5000/x", 1, "/checkpoints")
    assert [w for w in words if any("{" + name + "}" in w for name in PLACEHOLDERS)] == []
    typed = () if job.recipe is None else job.recipe.input.args
    assert not [w for w in typed if "$" in w or '"' in w]  # for a shell to expand
    services = plan_of(launches[0], example, 0).services
    asked = next((" ".join(spec.argv) for spec in services if spec.argv), None)
    assert example.reward is None if asked is None else str(example.reward) in asked
    for rank, launch in enumerate(launches[1:], 1):
        assert plan_of(launch, example, rank).job is None


def check_secrets(path: str, folder: Path) -> None:
    """The token comes from the platform's secret store and is never in an argument."""
    text = (EXAMPLES / path).read_text(encoding="utf-8")
    assert not re.search(r"[1-9a-f][0-9a-f]{31}", text)
    if (folder / "notes").is_dir():
        calls = Shell.make(folder).calls()
        assert calls
        assert not [call for call in calls if TOKEN in " ".join(call.argv)]


@pytest.mark.parametrize("path", EXAMPLE)
def test_nothing_is_to_be_changed(path: str) -> None:
    """No example has a placeholder, and none asks for a change."""
    text = (EXAMPLES / path).read_text(encoding="utf-8")
    assert PLACEHOLDER.findall(text) == []


def test_every_example_is_in_the_tables() -> None:
    """The folder's README lists every file, and no other."""
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\]\(([a-z][\w./-]+)\)", table))
    files = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("*/*") if path.is_file()}
    assert named == files >= set(EXAMPLE)
