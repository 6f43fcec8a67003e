"""Which node is in which group, and what is refused of groups on a platform."""

from __future__ import annotations

import pytest

from agent.job.services_file import parse
from agent.plan.plan_services import service_problems, with_places
from agent.platforms.resolve import resolve
from support.captured import changed, machine
from support.worlds import settings_of

FILE = """
[groups.rollout]
nodes = {rollout}
[groups.judges]
nodes = 1
[services.engine]
where = "rollout"
command = "serve {{port}}"
ready.tcp = "{{port}}"
weights = "sglang"
[services.judge]
where = "judges"
command = "serve"
ready.tcp = 8000
"""
PLAIN = {"EXPECTED_WORKERS": "3", "AGENT_HEAD": "10.0.0.9", "HOSTNAME": "b"}


def problems(name: str, changes: dict[str, str], rollout: int = 1) -> list[str]:
    """Return what is refused of the file's groups on a captured node."""
    environ = changed(name, changes)
    settings = settings_of({k: v for k, v in environ.items() if k.startswith(("AGENT_", "EXPE"))})
    file, wrong = parse(FILE.format(rollout=rollout), "s.toml", settings)
    assert wrong == []
    topology = resolve(environ, settings, machine(environ))
    placed = with_places(file, topology, settings)
    found = service_problems(settings, ("true",), topology, placed)
    return [problem.sentence() for problem in found]


def test_the_last_ranks_are_the_groups() -> None:
    """In the order of the file, with the front of an engine beside it."""
    environ = changed("plain-head", PLAIN)
    settings = settings_of({"EXPECTED_WORKERS": "5"})
    file, _ = parse(FILE.format(rollout=2), "s.toml", settings)
    topology = resolve({"EXPECTED_WORKERS": "5"}, settings, machine(environ))
    placed = with_places(file, topology, settings)
    assert [group.sentence() for group in placed.groups] == [
        "rollout: 2 node(s), ranks 3 to 4",
        "judges: 1 node(s), rank 5",
    ]
    assert [spec.name for spec in placed.services] == ["engine-front", "engine", "judge"]
    assert [tuple(spec.where.ranks) for spec in placed.services] == [(), (3, 4), (5,)]
    assert [spec.alone for spec in placed.services] == [False, True, True]


@pytest.mark.parametrize(
    ("name", "changes", "rollout", "words"),
    [
        ("plain-worker", {"EXPECTED_WORKERS": "2"}, 2, "3 node(s) in groups, of 3 in all"),
        ("plain-worker", {**PLAIN, "AGENT_GROUP": "rolout"}, 1, "one of trainer, rollout, judges"),
        ("dstack-worker", {"AGENT_GROUP": "rollout"}, 1, "AGENT_GROUP: got rollout on rank"),
        (
            "slurm-heterogeneous-worker",
            {"EXPECTED_WORKERS": "2"},
            1,
            "got 1 + 1 + 1 nodes, the trainer's first; expected those of the job's components",
        ),
        (
            "skypilot-group-worker",
            {"SKYPILOT_TASK_ID": "sky-managed-1_groups-2-2_engines_7-1"},
            1,
            "skypilot's task: got engines; expected one of trainer, rollout, judges",
        ),
        ("skypilot-group-worker", {}, 1, ""),
        ("lws-group-worker", {}, 1, ""),
    ],
)
def test_what_is_refused(name: str, changes: dict[str, str], rollout: int, words: str) -> None:
    """A node of no group or of another than its rank's, and groups that do not fit the run."""
    found = problems(name, changes, rollout)
    assert [words in problem for problem in found] == [True] if words else found == []
