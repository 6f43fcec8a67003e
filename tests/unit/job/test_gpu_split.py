"""GPUs of services: selected, refused and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.decisions.head import head_state as h
from agent.decisions.worker import worker_state as w
from agent.job.gpu_split import JOB_GPUS, GpuSplit, split_gpus
from agent.job.node_command import NodeCommand
from agent.job.services import ON_EVERY, ON_HEAD, ServiceSpec, TcpProbe, Where
from agent.job.services_file import parse
from agent.node.facts import RayPython
from agent.plan.plan import RAY
from agent.plan.show import render, summary
from agent.settings.redact import redactor_for
from support import heads, workers
from support.shares import by_torchrun, share_of
from support.worlds import MACHINE, services_plan, services_refused, settings_of

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.plan.plan import Plan

HEAD = {"AGENT_HEAD": "10.0.0.5", "EXPECTED_WORKERS": "2"}
WORKER = {"AGENT_HEAD": "10.0.0.9"}
FILE = """
[services.judge]
command = "vllm serve judge"
ready.tcp = 8001
gpus = 2
"""
EIGHT = replace(MACHINE, gpus=8)
JUDGE = ServiceSpec("judge", "serve", ("serve",), TcpProbe(8001), 60.0, "within", gpus=2)
TOOL = replace(JUDGE, name="tool", gpus=1)


def split(
    *services: ServiceSpec,
    gpus: int = 8,
    maker: str = "nvidia",
    ray: str = "2.49.0",
    rank: int | None = 0,
    is_head: bool = True,
    **environ: str,
) -> GpuSplit:
    """Return the split of a node."""
    facts = replace(MACHINE, gpus=gpus, gpu_maker=maker, ray=RayPython("python", "3.12", ray))
    settings = settings_of({n: text for n, text in environ.items() if n.startswith("AGENT")})
    return split_gpus(services, settings, facts, environ, rank, is_head=is_head)


def plan(
    environ: dict[str, str],
    text: str = FILE,
    facts: Facts = EIGHT,
    command: tuple[str, ...] | None = ("true",),
) -> Plan:
    """Return the plan of a node of eight GPUs with this services file."""
    return services_plan(environ, text, facts, command)


@pytest.mark.parametrize(
    ("given", "services", "job"),
    [
        ({}, {"judge": "6,7", "tool": "5"}, "0,1,2,3,4"),
        ({"AGENT_NUM_GPUS": "4"}, {"judge": "2,3", "tool": "1"}, "0"),
        ({"gpus": 0, "AGENT_NUM_GPUS": "4"}, {"judge": "2,3", "tool": "1"}, "0"),
        ({"CUDA_VISIBLE_DEVICES": "7,6,1,0"}, {"judge": "1,0", "tool": "6"}, "7"),
        (
            {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"},
            {"judge": "GPU-b,GPU-c", "tool": "GPU-a"},
            "",
        ),
    ],
)
def test_services_take_theirs_from_the_end(
    given: dict[str, object], services: dict[str, str], job: str
) -> None:
    """In the order of the file; a selection of the user's, or AGENT_NUM_GPUS, is what is split."""
    found = split(JUDGE, TOOL, **given)  # type: ignore[arg-type]
    assert {name: ",".join(own) for name, own in found.of_services().items()} == services
    assert found.job_environment() == {"CUDA_VISIBLE_DEVICES": job}
    assert found.service_environment("judge") == {"CUDA_VISIBLE_DEVICES": services["judge"]}
    assert found.service_environment("other") == {}


@pytest.mark.parametrize(
    ("environ", "ray", "variable", "job"),
    [
        ({}, "2.49.0", "HIP_VISIBLE_DEVICES", "0,1"),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6"}, "2.49.0", "HIP_VISIBLE_DEVICES", "4"),
        ({"HIP_VISIBLE_DEVICES": "4,5"}, "2.49.0", "HIP_VISIBLE_DEVICES", "-1"),
        ({}, "2.40.0", "ROCR_VISIBLE_DEVICES", "0,1"),
        ({"CUDA_VISIBLE_DEVICES": "3,2,1,0"}, "2.40.0", "CUDA_VISIBLE_DEVICES", "3,2"),
    ],
)
def test_amd(environ: dict[str, str], ray: str, variable: str, job: str) -> None:
    """By the variable that Ray assigns them with, or an earlier Ray's user has chosen."""
    found = split(JUDGE, gpus=4, maker="amd", ray=ray, **environ)  # type: ignore[arg-type]
    assert found.job_environment() == {variable: job}


def test_nothing_changes_without_such_services() -> None:
    """Ray counts the GPUs itself, and no variable is set."""
    for made in (plan(HEAD, FILE.replace("gpus = 2", "")), plan(WORKER)):
        assert "--num-gpus" not in " ".join(made.process(RAY).argv)
        assert "CUDA_VISIBLE_DEVICES" not in made.environment("10.0.0.5", "10.0.0.5")
    assert plan(WORKER).gpus == 8


def test_the_job_gets_the_rest() -> None:
    """Ray its number and variable, other launchers a process each; `plan` shows whose they are."""
    made = plan(HEAD)
    assert "--num-gpus=6" in made.process(RAY).argv
    assert made.environment("10.0.0.5", "10.0.0.5")["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5"
    assert made.gpus == 6
    assert made.failed() == ()
    lines = "\n".join(f"{line.label}{line.text}" for line in summary(made))
    assert "3: 1 x 6 and 2 x 8 GPU(s) for the job; GPU 6, 7 here for judge, by EXPECTED" in lines
    shown = render(made, redactor_for({}, settings_of({})))
    assert "judge, GPU 6, 7: /bin/sh -c 'vllm serve judge'" in shown
    launcher = plan({**HEAD, "AGENT_LAUNCHER": "node"}).share_launcher
    assert isinstance(launcher, NodeCommand)
    assert launcher.processes == 6
    assert launcher.with_processes(3).processes == 3


def test_a_recipe_counts_the_rest() -> None:
    """Of the head, of a rank, and of all; a node for a service alone is no node of the job."""
    recipe = {"AGENT_JOB": "rehearsal"}

    def sizes(text: str) -> list[int]:
        job = plan({**HEAD, **recipe}, text, command=None).job
        assert job is not None
        assert job.recipe is not None
        return [node.gpus for node in job.recipe.input.nodes]

    assert sizes(FILE) == [6, 8, 8]
    assert sizes(f'{FILE}where = "every"') == [6, 6, 6]
    assert sizes(f'{FILE}where = "workers"') == [8, 6, 6]
    assert sizes(f'{FILE}where = "rank 2"') == [8, 8, 6]
    assert sizes(f'{FILE}where = "rank 1"\nalone = true') == [8, 8, 8]


def test_too_many_are_refused() -> None:
    """With the table and the key; two services together, too."""
    made = plan(HEAD, facts=replace(MACHINE, gpus=1))
    (finding,) = made.failed()
    assert finding.what == ("AGENT_SERVICES [services.judge] gpus: 2, on a node with 1 GPU(s)")
    found = split(JUDGE, TOOL, gpus=2)
    assert found.fault() == (
        "[services.tool] gpus",
        "1, 3 with the services before it, on a node with 2 GPU(s)",
    )
    reward = replace(JUDGE, name="reward server")
    assert split(reward, gpus=1).fault()[0] == "[services.reward] gpus"
    assert split(JUDGE, gpus=2).fault() == ("", "")


def test_a_given_ray_has_counted_them_all() -> None:
    """KubeRay's Ray has them before the agent starts."""
    environ = {
        "EXPECTED_WORKERS": "1",
        "RAY_CLUSTER_NAME": "rl",
        "KUBERAY_GEN_RAY_START_CMD": "ray start --head --block",
    }
    (problem,) = services_refused(environ, FILE, EIGHT)
    assert problem.variable == "AGENT_SERVICES=s.toml [services.judge] gpus"
    assert problem.expected == "0: KubeRay's Ray counts all GPUs of its pods as its own"


@pytest.mark.parametrize(
    "text",
    [
        f"{FILE}env = {{ CUDA_VISIBLE_DEVICES = '0' }}",
        f"{FILE}env = {{ HIP_VISIBLE_DEVICES = '0' }}",
        FILE.replace("gpus = 2", "gpus = -1"),
        FILE.replace("gpus = 2", "gpus = 'all'"),
    ],
)
def test_what_is_wrong_in_the_file(text: str) -> None:
    """A selection of one's own beside `gpus`, and what is no number."""
    (problem,) = parse(text, "s.toml", settings_of({}))[1]
    assert problem.variable.startswith("AGENT_SERVICES=s.toml [services.judge] ")


# --- a rank that the head gives -----------------------------------------------------------------

ON_RANK_1 = replace(JUDGE, where=Where("rank", 1))


def test_a_worker_without_a_rank_of_its_platform() -> None:
    """What Ray gets is known once the head has given the rank."""
    made = plan(WORKER, f'{FILE}where = "rank 1"')
    assert f"--num-gpus={JOB_GPUS}" in made.process(RAY).argv
    assert made.gpus == 8
    assert made.gpu_split.of_job(1) == tuple("012345")
    assert made.gpu_split.of_job(2) == tuple("01234567")
    env = made.environment("10.0.0.6", "10.0.0.9", 1)
    assert env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5"
    assert "CUDA_VISIBLE_DEVICES" not in made.environment("10.0.0.6", "10.0.0.9", 2)


def test_the_head_counts_the_rest_of_such_a_worker() -> None:
    """Its hello was sent before it had a rank; a service on every worker is left out there."""
    services = (ON_RANK_1, replace(TOOL, where=Where("workers")), replace(TOOL, where=ON_HEAD))
    of = replace(by_torchrun(2), services=services)
    state = heads.Trace(of, []).state

    def gpus(n: int, rank: int | None, given: int | None) -> int:
        worker = share_of(n, rank=rank).worker
        return state.gpus_for_job(replace(worker, given_rank=given))

    assert gpus(2, None, 1) == 2
    assert gpus(3, None, 2) == 4
    assert gpus(2, 1, None) == 4  # by its platform's rank it left them out itself
    report = share_of(2)
    report = h.WorkerReported(replace(report.worker, gpus=1, given_rank=1))
    assert state.gpus_for_job(report.worker) == 0


@pytest.mark.parametrize(("rank", "code"), [(1, 78), (2, None)])
def test_a_rank_whose_service_needs_more(rank: int, code: int | None) -> None:
    """The worker leaves with 78, and reports it."""
    few = GpuSplit(("0",), (ON_RANK_1,), ("CUDA_VISIBLE_DEVICES",))
    goal = w.WorkerGoal("pod0", workers.LIMITS, services=(ON_RANK_1,), gpu_split=few)
    trace = workers.WorkerTrace(goal, [(1, replace(workers.replied(), rank=rank))])
    assert [end.exit_code for end in trace.outcomes] == ([] if code is None else [code])
    if code is not None:
        assert trace.outcomes[0].reason == (
            "AGENT_SERVICES [services.judge] gpus: 2, on a node with 1 GPU(s), which the head has "
            "made rank 1"
        )


def test_every_node_may_have_one() -> None:
    """`every` and `workers` need no rank."""
    worker = {"rank": None, "is_head": False}
    every = split(replace(TOOL, where=ON_EVERY), **worker)  # type: ignore[arg-type]
    assert every.of_job() == tuple("0123456")
    assert every.job_indexes() == frozenset(range(7))
    on_head = split(replace(TOOL, where=ON_HEAD), **worker)  # type: ignore[arg-type]
    assert on_head.of_job(1) == tuple("01234567")
    assert split(**worker).job_indexes() is None  # type: ignore[arg-type]
