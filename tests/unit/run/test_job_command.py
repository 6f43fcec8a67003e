"""The submitted job: made for the joined nodes, for a checkpoint folder, or refused."""

from __future__ import annotations

import json
import os
import shlex
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.checks.finding import CheckedNode
from agent.checks.job_needs import INPUTS, recipe_findings
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import RayNode
from agent.frameworks.recipe import JobBasis
from agent.frameworks.verl import FRAMEWORK
from agent.job.checkpoints import CHECKPOINT_FILE, CheckpointOwner
from agent.job.services import Placeholders
from agent.node.facts import Facts, Framework, Mount
from agent.node.read import is_unreadable
from agent.platforms.resolve import resolve
from agent.record.checkpoint_folder import write_mark
from agent.run.head_job import Submission, SubmissionMaker, read_basis
from agent.run.plan_input import add_job_facts
from agent.settings import load
from agent.settings.jobs import BY_NAME
from support.heads import Trace, goal, nodes, reported
from support.toy_recipe import NAME, NEEDED, toy
from support.worlds import MACHINE, plan_of

if TYPE_CHECKING:
    from agent.plan.plan import Plan

__all__ = ["toy"]

pytestmark = pytest.mark.usefixtures("toy")
WITH = replace(
    MACHINE,
    gpus=8,
    framework=Framework("verl", "/opt/verl", "0.9.1"),
    checkpoints=Mount("/volume", "nfs4", "10.0.0.9:/export"),
)
PLACE = Placeholders("10.0.0.1", "10.0.0.1", "0", "/logs/run/node")
URL = "http://10.0.0.1:5000/get_reward"
TWO = (h.RaySeen(nodes(2).nodes), reported(2))
"""Two nodes of 8 GPUs."""
OURS = CheckpointOwner(NAME, "verl", "0.9.1", "org/model", 16, 1)


def plan(folder: Path, facts: Facts = WITH, **environ: str) -> Plan:
    """Return the plan of a head that expects one worker."""
    own = {"RAY_WORKER": "0", "EXPECTED_WORKERS": "1", "AGENT_CHECKPOINTS": str(folder)}
    return plan_of({**own, **NEEDED, **environ}, facts)


def made(  # noqa: PLR0913 - all that it rests on
    of: Plan,
    events: tuple[h.HeadEvent, ...] = TWO,
    env: dict[str, str] | None = None,
    *,
    is_followed: bool = False,
    attempt: int = 1,
    basis: JobBasis = JobBasis(),  # noqa: B008 - a value
) -> Submission | Outcome:
    """Return the submission after these nodes have joined."""
    trace = Trace(goal(1), [(3.0, event) for event in events])
    found = of.environment("10.0.0.1", "10.0.0.1") if env is None else env
    state = trace.state.with_attempt(number=attempt)
    maker = SubmissionMaker(of, state, "run", basis, is_followed=is_followed)
    return anyio.run(maker.make, PLACE, URL, found)


def sentence_of(found: Submission | Outcome) -> str:
    """Return the log lines about it."""
    assert isinstance(found, Submission), found
    return "\n".join(said.sentence for said in found.messages)


def words(found: Submission | Outcome) -> list[str]:
    """Return the submitted command."""
    assert isinstance(found, Submission), found
    return shlex.split(found.line.partition("exec ")[2])


def test_a_command_is_filled_in(tmp_path: Path) -> None:
    """A user's command gets the same placeholders; no checkpoint folder is made."""
    environ = {"RAY_WORKER": "0", "AGENT_CHECKPOINTS": str(tmp_path / "c")}
    of = plan_of(environ, command=["train", "{total_gpus}", "{checkpoints}", "{attempt}"])
    assert words(made(of)) == ["train", "16", str(tmp_path / "c"), "1"]
    assert list(tmp_path.iterdir()) == []


def test_a_computed_size_must_be_whole_on_the_nodes_that_joined(tmp_path: Path) -> None:
    """Else the run is refused with the words of the command; the node launcher counts all nodes."""
    environ = {"RAY_WORKER": "0", "AGENT_CHECKPOINTS": str(tmp_path / "c")}
    of = plan_of(environ, command=["train", "{nodes-1}", "{total_gpus/4}"])
    assert words(made(of)) == ["train", "1", "4"]
    refused = made(plan_of(environ, command=["train", "--actors={nodes/3}"]))
    assert isinstance(refused, Outcome)
    assert (refused.kind, refused.exit_code) == (Kind.REFUSED, 78)
    assert "the job's command does not fit what joined (2 of 8 GPUs" in refused.reason
    assert refused.reason.endswith("{nodes/3} is no whole number: 2/3")

    without_gpus = RayNode("few", "10.0.0.2", gpus=0.0, cpus=16.0)
    uneven = (h.RaySeen((*nodes().nodes, without_gpus)), reported(2))
    assert words(made(plan_of(environ, command=["train", "{nodes*3}"]), uneven)) == ["train", "3"]
    launched = environ | {"AGENT_LAUNCHER": "node"}
    of = plan_of(launched, command=["train", "{nodes*3}", "{rank}"])
    assert words(made(of, uneven)) == ["train", "6", "{rank}"]


def test_a_proxy_is_not_between_nodes(tmp_path: Path) -> None:
    """The job reaches a reward server on any node without the user's proxy."""
    environ = {"RAY_WORKER": "0", "AGENT_CHECKPOINTS": str(tmp_path / "c")}
    of = plan_of(environ, command=["train"])
    own = {"http_proxy": "http://proxy:3128", "no_proxy": "10.0.0.1,.lan"}
    submitted, without = made(of, env=own), made(of)
    assert isinstance(submitted, Submission)
    assert isinstance(without, Submission)
    variables = submitted.runtime_env["env_vars"]
    assert variables == dict.fromkeys(("no_proxy", "NO_PROXY"), "10.0.0.1,.lan,10.0.0.2")
    assert "env_vars" not in without.runtime_env


def test_a_recipe_is_made_of_what_joined(tmp_path: Path) -> None:
    """Not for the expected nodes; the log has the calculation, the folder its owner file."""
    of = plan(tmp_path / "c", AGENT_NUM_GPUS="1", AGENT_REWARD="builtin")
    submitted = made(of)
    found, said = words(submitted), sentence_of(submitted)
    assert found[found.index("--gpus") + 1] == "16"
    assert found[found.index("--url") + 1] == URL
    assert "16 GPUs: batch 1024 = 16 x 64" in said
    assert f"checkpoints go to {tmp_path / 'c'}" in said
    assert json.loads((tmp_path / "c" / CHECKPOINT_FILE).read_text())["world_size"] == 16


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """With the joined nodes, the recipe's error; the folder is not touched."""
    few = RayNode("few", "10.0.0.2", gpus=4.0, cpus=16.0)
    odd = (h.RaySeen((*nodes().nodes, few)), reported(2))
    found = made(plan(tmp_path / "c"), odd)
    assert isinstance(found, Outcome)
    assert (found.kind, found.exit_code, found.phase) == (Kind.REFUSED, 78, "submitting")
    assert "1 of 8 GPUs" in found.reason
    assert "1 of 4 GPUs and 16 CPUs" in found.reason
    assert "not divisible by 12" in found.reason
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("environ", "there", "env_vars"),
    [
        ({}, None, None),
        ({}, {}, {"TOY_MODE": "fast"}),
        ({"TOY_MODE": "slow"}, None, None),
    ],
)
def test_what_a_recipe_needs_reaches_the_job(
    environ: dict[str, str], there: dict[str, str] | None, env_vars: object, tmp_path: Path
) -> None:
    """By the environment of Ray's start; values known later by the runtime_env."""
    found = made(plan(tmp_path / "c", WITH, **environ), env=there)
    assert isinstance(found, Submission)
    assert found.runtime_env.get("env_vars") == env_vars


def test_what_the_user_put_into_the_runtime_env_wins(tmp_path: Path) -> None:
    """The recipe's values are added, and no user value is lost."""
    of = plan(tmp_path / "c")
    assert of.job is not None
    own: dict[str, Any] = {"pip": ["x"], "env_vars": {"TOY_MODE": "mine", "A": "1"}}
    of = replace(of, job=replace(of.job, runtime_env=own))
    found = made(of, env={})
    assert isinstance(found, Submission)
    assert found.runtime_env == own


@pytest.mark.parametrize(
    ("mark", "steps", "said"),
    [
        (OURS, True, ""),
        (replace(OURS, model="org/other"), True, "another model's: org/other, not org/model"),
        (replace(OURS, model="org/other"), False, "another model's"),
        (replace(OURS, world_size=8), True, "written by 8 processes"),
        (replace(OURS, world_size=8), False, ""),
        (None, True, ""),
    ],
)
def test_checkpoints_that_are_there(
    mark: CheckpointOwner | None, said: str, tmp_path: Path, *, steps: bool
) -> None:
    """A run resumes its own checkpoints, and no others."""
    if mark is not None:
        assert write_mark(str(tmp_path), mark) == ""
    if steps:
        (tmp_path / "global_step_40").mkdir()
        (tmp_path / FRAMEWORK.checkpoints.tracker).write_text("40")
    found = made(plan(tmp_path))
    if said:
        assert isinstance(found, Outcome)
        assert found.exit_code == 78
        assert said in found.reason
        assert str(tmp_path) in found.reason
    else:
        assert (f"resumes from {tmp_path}/global_step_40" in sentence_of(found)) == steps


def test_a_further_attempt_without_a_node_is_a_loss(tmp_path: Path) -> None:
    """With fewer nodes it cannot resume, but another run may: 75."""
    assert write_mark(str(tmp_path), replace(OURS, world_size=24)) == ""
    (tmp_path / "global_step_40").mkdir()
    (tmp_path / FRAMEWORK.checkpoints.tracker).write_text("40")
    found = made(plan(tmp_path), attempt=2)
    assert isinstance(found, Outcome)
    assert (found.kind, found.exit_code) == (Kind.LOST, 75)
    assert "written by 24 processes" in found.reason


def test_a_job_that_is_followed_again_is_not_checked(tmp_path: Path) -> None:
    """A restarted agent follows a job that is writing its first checkpoint."""
    (tmp_path / "global_step_20").mkdir()
    assert isinstance(made(plan(tmp_path)), Outcome)
    assert isinstance(made(plan(tmp_path), is_followed=True), Submission)
    assert write_mark(str(tmp_path), OURS) == ""
    assert "begins at step 0" in sentence_of(made(plan(tmp_path)))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """The error comes before the job has run for hours and cannot save."""
    (tmp_path / "file").write_text("")
    found = made(plan(tmp_path / "file" / "c"))
    assert isinstance(found, Outcome)
    assert found.culprit == "AGENT_CHECKPOINTS"


@pytest.mark.parametrize(
    ("own", "other", "warned"),
    [
        (WITH.checkpoints, WITH.checkpoints, False),
        (WITH.checkpoints, Mount("/volume", "nfs4", "10.0.0.8:/export"), True),
        (Mount("/", "ext4", "/dev/sda1"), Mount("/", "ext4", "/dev/sda1"), True),
    ],
)
def test_one_disk_for_all_nodes(
    own: Mount | None,
    other: Mount,
    tmp_path: Path,
    *,
    warned: bool,
) -> None:
    """A folder on a different disk per node gets a warning: shards stay where ranks ran."""
    introduced = h.WorkerIntroduced("agent2", "pod2", replace(MACHINE, checkpoints=other))
    of = plan(tmp_path / "c", replace(WITH, checkpoints=own))
    said = sentence_of(made(of, (*TWO, introduced)))
    assert ("is no disk that all nodes share" in said) == warned


def test_what_is_looked_up_for_a_recipe(tmp_path: Path) -> None:
    """The framework and the folder's mount; nothing for a user's command."""
    environ = {**NEEDED, "RAY_WORKER": "0", "AGENT_CHECKPOINTS": str(tmp_path)}
    loaded = load(environ)
    facts = add_job_facts(MACHINE, loaded, resolve(environ, loaded.settings, MACHINE))
    assert facts.framework == Framework("verl")
    assert facts.checkpoints is not None
    command = load({}, ["train"])
    assert add_job_facts(MACHINE, command, resolve({}, command.settings, MACHINE)) == MACHINE


def test_a_pinned_revision_is_a_folder_of_the_cache(tmp_path: Path) -> None:
    """The framework loads that commit, the run keeps it, and a revision that is missing is 78."""
    pinned = {"AGENT_JOB": "verl-grpo", "AGENT_REWARD": "off", "AGENT_MODEL_REVISION": "v1"}
    of = replace(plan(tmp_path / "c", WITH, **pinned), environ={"HF_HOME": str(tmp_path)})
    many = (h.RaySeen(tuple(replace(one, cpus=64.0) for one in TWO[0].nodes)), reported(2))
    refused = made(of, many)
    assert isinstance(refused, Outcome)
    assert (refused.exit_code, refused.culprit) == (78, "AGENT_MODEL_REVISION")
    cache = tmp_path / "hub/models--org--model"
    snapshot = cache / "snapshots" / ("0dd" * 13 + "0")
    for folder in (snapshot, cache / "refs"):
        folder.mkdir(parents=True)
    (cache / "refs/v1").write_text(snapshot.name)
    basis = anyio.run(read_basis, of, Trace(goal(1), [(3.0, event) for event in many]).state)
    assert (basis.commit, basis.folder) == (snapshot.name, str(snapshot))
    submitted = made(of, many, basis=basis)
    assert f"actor_rollout_ref.model.path={snapshot}" in words(submitted)
    assert f"org/model is commit {snapshot.name}" in sentence_of(submitted)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ["AGENT_MODEL", "AGENT_TRAIN_DATA"]),
        ({"RAY_WORKER": "1", "AGENT_HEAD": "10.0.0.1"}, ["AGENT_MODEL"]),
        ({"AGENT_PREPARE": "make data"}, []),
        ({"AGENT_MODEL": "org/model", "AGENT_TRAIN_DATA": "/data/*.parquet"}, []),
        ({"AGENT_MODEL": "{here}", "AGENT_TRAIN_DATA": "{here}/a.parquet"}, ["AGENT_TRAIN_DATA"]),
    ],
)
def test_missing_paths(changes: dict[str, str], said: list[str], tmp_path: Path) -> None:
    """A path of model or data that is not there is warned of before the boot."""
    paths = {"AGENT_MODEL": "/no/model", "AGENT_TRAIN_DATA": "/no/train.parquet"}
    environ = {**NEEDED, **paths, "RAY_WORKER": "0", "AGENT_CHECKPOINTS": str(tmp_path)}
    environ |= {name: text.format(here=tmp_path) for name, text in changes.items()}
    loaded = load(environ)
    topology = resolve(environ, loaded.settings, MACHINE)
    facts = add_job_facts(MACHINE, loaded, topology)
    node = CheckedNode(facts, loaded.settings, topology)
    found = recipe_findings(BY_NAME[environ["AGENT_JOB"]], node, "/c")
    warned = [one.what for one in found if one.check == INPUTS]
    assert [text.split(":")[0] for text in warned] == said


def test_data_that_this_user_may_not_read() -> None:
    """A file or folder of another user is a warning, as a missing one is; others are none."""
    with TemporaryDirectory() as name:  # pytest's own folders are root's alone
        top = Path(name)
        top.chmod(0o755)
        for data, mode in (("mine", 0o644), ("theirs", 0o600)):
            (top / data).write_text("{}")
            (top / data).chmod(mode)
        (top / "folder").mkdir(mode=0o744)
        former = os.geteuid()
        if former == 0:
            os.seteuid(12_345)
        else:
            (top / "theirs").chmod(0)
            (top / "folder").chmod(0o400)
        try:
            found = [
                one for one in ("mine", "theirs", "folder", "no") if is_unreadable(f"{top}/{one}")
            ]
        finally:
            os.seteuid(former)
    assert found == ["theirs", "folder"]
    assert not is_unreadable("org/model")
    loaded = load({**NEEDED, "AGENT_JOB": NAME})
    topology = resolve({}, loaded.settings, MACHINE)
    facts = replace(MACHINE, unreadable_inputs={"AGENT_TRAIN_DATA": "/data/theirs"})
    node = CheckedNode(facts, loaded.settings, topology)
    (warned,) = [one for one in recipe_findings(BY_NAME[NAME], node, "/c") if one.check == INPUTS]
    assert warned.what == "AGENT_TRAIN_DATA: /data/theirs may not be read by the user of this agent"


def test_a_run_keeps_the_format_of_its_checkpoints(tmp_path: Path) -> None:
    """The first submission's format is kept by the next, or refused with both values."""
    key = "actor_rollout_ref.actor.fsdp_config.fsdp_size"
    many = (h.RaySeen(tuple(replace(one, cpus=64.0) for one in TWO[0].nodes)), reported(2))
    of = partial(plan, tmp_path, AGENT_JOB="verl-grpo", AGENT_REWARD="off")
    words(made(of(AGENT_JOB_ARGS=f"{key}=8"), many))
    written = json.loads((tmp_path / CHECKPOINT_FILE).read_text())["settings"]
    assert written[key] == "8"
    (tmp_path / "global_step_40").mkdir()
    (tmp_path / FRAMEWORK.checkpoints.tracker).write_text("40")
    again = made(of(), many)
    assert f"{key}=8" in words(again)
    assert (
        f"keeps the settings of the checkpoints: actor_rollout_ref.actor.strategy fsdp, {key} 8"
        in (sentence_of(again))
    )
    other = made(of(AGENT_JOB_ARGS=f"{key}=4"), many)
    assert isinstance(other, Outcome)
    assert other.exit_code == 78
    assert f"global_step_40 was written with {key} 8, and this run has 4" in other.reason
