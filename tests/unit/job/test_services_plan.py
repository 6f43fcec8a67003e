"""Services in the plan: who runs which, what is refused, and how `plan` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.errors import SettingsError
from agent.job.recipe_services import generation_of, recipe_tables
from agent.job.services import Placeholders, digest, reward_url, wanted_steps
from agent.job.services_file import parse
from agent.node import read
from agent.node.facts import Framework
from agent.node.read import disk_of
from agent.plan.show import render
from agent.run import plan_input
from agent.settings.redact import redactor_for
from support.launches import EXAMPLES
from support.worlds import MACHINE, SECRET, services_plan, services_refused, settings_of, with_ray

if TYPE_CHECKING:
    from pathlib import Path

    from agent.job.services import ServicesFile
    from agent.node.facts import Facts
    from agent.plan.plan import Plan

HEAD = {"AGENT_HEAD": "10.0.0.5", "EXPECTED_WORKERS": "2"}
WORKER = {"AGENT_HEAD": "10.0.0.9"}
DSTACK = {"DSTACK_NODES_NUM": "3", "DSTACK_MASTER_NODE_IP": "10.0.0.5"}
KUBERAY = {
    "EXPECTED_WORKERS": "1",
    "RAY_CLUSTER_NAME": "rl",
    "KUBERAY_GEN_RAY_START_CMD": "ray start --head --block",
}
EVERY = 'where = "every"'
ALONE = 'where = "rank {}"\nalone = true'
AT_RANK_3 = 'where = "rank 3"'
BY_TORCHRUN = {"AGENT_LAUNCHER": "torchrun"}
ONE = {"AGENT_HEAD": "10.0.0.5"}
READY = 'command = "serve {rank}"\nready.tcp = 8000\n'
FILE = f"""
[services.finder]
{READY}
where = "every"
[services.judge]
{READY.replace("8000", "8001")}
where = "rank 2"
alone = true
[prepare.data]
command = "make"
where = "every"
once = "/data/.done"
"""


def plan(environ: dict[str, str], text: str = FILE, facts: Facts = MACHINE) -> Plan:
    """Return the plan of a node with this services file."""
    return services_plan(environ, text, facts)


def a(port: int = 8000, more: str = "", name: str = "a") -> str:
    """Return the table of a service."""
    return f'[services.{name}]\ncommand = "serve"\nready.tcp = {port}\n{more}\n'


@pytest.mark.parametrize(("steps", "is_refused"), [(45, False), (46, True)])
def test_a_node_runs_no_more_than_its_report_has(steps: int, *, is_refused: bool) -> None:
    """Those of one rank count once: no node runs those of two."""
    of_rank = 'where = "rank {}"'
    ranks = "".join(
        a(9000 + n, of_rank.format(rank), f"s{rank}{n}") for rank in (1, 2) for n in range(4)
    )
    more = "".join(f'[prepare.p{n}]\ncommand = "make"\n' for n in range(steps))
    found = services_refused(HEAD, f"{ranks}{a(8000, EVERY, 'finder')}{more}")
    refused = [one.got for one in found if "on one node" in one.got]
    assert refused == (["51 services and prepare steps on one node"] if is_refused else [])


@pytest.mark.parametrize(
    ("environ", "here", "possible", "has_ray"),
    [
        (HEAD, ["finder"], ["finder"], True),
        (WORKER, ["finder"], ["finder", "judge"], True),
        ({**DSTACK, "DSTACK_NODE_RANK": "0"}, ["finder"], ["finder"], True),
        ({**DSTACK, "DSTACK_NODE_RANK": "1"}, ["finder"], ["finder"], True),
        ({**DSTACK, "DSTACK_NODE_RANK": "2"}, ["finder", "judge"], ["finder", "judge"], False),
    ],
)
def test_the_rank_decides_what_runs_on_a_node(
    environ: dict[str, str], here: list[str], possible: list[str], *, has_ray: bool
) -> None:
    """A node's rank decides what runs there; without a rank any service may."""
    made = plan(environ)
    assert [spec.name for spec in made.services] == here
    assert [spec.name for spec in made.possible_services] == possible
    assert any(process.label == "ray" for process in made.processes) is has_ray
    assert ("8000" in {x.port for x in made.listeners}) is ("finder" in here)
    assert any("Ray" in x.who for x in made.listeners) is has_ray


@pytest.mark.parametrize(
    ("environ", "workers"),
    [({**DSTACK, "DSTACK_NODE_RANK": "0"}, 1), (HEAD, 2), ({"AGENT_HEAD": "10.0.0.5"}, 0)],
)
def test_a_node_alone_is_no_worker(environ: dict[str, str], workers: int) -> None:
    """The platform's count includes it; EXPECTED_WORKERS does not."""
    assert plan(environ).topology.expected_workers == workers


def test_head_and_workers_agree() -> None:
    """The digest covers what the head wants of workers; its own services may differ."""
    one, other = plan(HEAD), plan(WORKER)
    assert digest(one.all_services, one.steps) == digest(other.all_services, other.steps)
    changed = plan(WORKER, FILE.replace("8001", "8002"))
    assert digest(one.all_services, one.steps) != digest(changed.all_services, changed.steps)
    changed = plan(WORKER, FILE.replace("/data/.done", "/data/.made"))
    assert digest(one.all_services, one.steps) != digest(changed.all_services, changed.steps)
    more = plan(WORKER, f"{FILE}\n[services.x]\n{READY.replace('8000', '8009')}")
    assert digest(one.all_services, one.steps) == digest(more.all_services, more.steps)


def test_the_plan_has_what_waits_for_what() -> None:
    """On the head and on a worker; dependencies that this run lacks are left out."""
    text = """
[services.reward]
command = "serve"
where = "rank 1"
[services.finder]
command = "find"
ready.tcp = 8000
where = "every"
after = ["gsm8k", "model"]
[prepare.gsm8k]
command = "make"
where = "every"
within = "1h"
after = ["AGENT_PREPARE"]
"""
    environ = {**HEAD, "AGENT_PREPARE": "fetch", "AGENT_WAIT_PREPARE": "2h"}
    head, worker = plan(environ, text), plan({**environ, **WORKER}, text)
    shown = render(head, redactor_for({}, settings_of({})))
    for line in (
        "  prepare gsm8k: make\n",
        "; gsm8k after AGENT_PREPARE; ",
        "  2 h        prepare steps (AGENT_WAIT_PREPARE)",
        "  3 h 20 min all that a step or service waits for before it starts (the sum of theirs)",
        "  10 min     the reward server on rank 1 (AGENT_WAIT_REWARD)",
    ):
        assert line in shown
    shown = render(worker, redactor_for({}, settings_of({})))
    assert "  prepare gsm8k: make\n" in shown
    assert "; gsm8k after AGENT_PREPARE; " in shown
    assert [step.name for step in wanted_steps(worker.steps)] == ["gsm8k"]
    assert digest(head.all_services, head.steps) == digest(worker.all_services, worker.steps)


@pytest.mark.parametrize(
    ("environ", "text", "after"),
    [
        ({}, '[services.reward]\ncommand = "serve"', ("AGENT_PREPARE_EACH", "AGENT_PREPARE")),
        ({}, '[services.reward]\ncommand = "serve"\nafter = []', ()),
        ({}, '[services.reward]\ncommand = "serve"\nafter = ["data"]', ("data",)),
        ({}, '[services.reward]\nafter = ["data"]', ("data",)),
        ({}, "[services.reward]", ()),
        ({"AGENT_REWARD": "serve"}, "", ("AGENT_PREPARE_EACH", "AGENT_PREPARE")),
        ({"AGENT_REWARD": "builtin"}, "", ()),
        ({"AGENT_REWARD": "http://10.0.0.7:5000/x"}, "", ()),
    ],
)
def test_what_the_reward_server_waits_for(
    environ: dict[str, str], text: str, after: tuple[str, ...]
) -> None:
    """A command waits for prepare steps; the bundled server and a URL do not."""
    made = plan({**HEAD, **environ}, f'{text}\n[prepare.data]\ncommand = "make"')
    assert made.all_services[0].after == after


def test_the_plan_shows_all_of_it() -> None:
    """Services, steps, waits and ports are there to be read before anything starts."""
    text = render(plan(HEAD), redactor_for({}, settings_of({})))
    for line in (
        "  finder on every node: /bin/sh -c 'serve {rank}'",
        "  judge on rank 2, which joins no Ray: /bin/sh",
        "  prepare data: make",
        "  8000         finder: as its command says; guard: as its command has it",
        "  10 min     the finder on every node (services.finder, ready.within)",
    ):
        assert line in text
    text = render(plan(WORKER), redactor_for({}, settings_of({})))
    assert "  judge on rank 2, which joins no Ray: /bin/sh" in text


@pytest.mark.parametrize(
    ("environ", "text", "where", "words"),
    [
        ({}, a(8265), "[services.a] ready", "dashboard"),
        ({}, a(8266), "[services.a]", "agent and a on 8266"),
        ({}, a(10500), "[services.a]", "Ray's workers"),
        ({"AGENT_REWARD": "builtin"}, a(5000), "[services.a] ready", "reward server and a on 5000"),
        ({}, a() + a(name="b"), "[services.b] ready", "service a and b on 8000"),
        (BY_TORCHRUN, a(6379), "[services.a] ready", "rendezvous and a on 6379"),
        ({"AGENT_REWARD_PORT": "8266"}, "[services.reward]\n", "[services.reward]", "agent and"),
        ({**DSTACK, "DSTACK_NODE_RANK": "0"}, a(8000, AT_RANK_3), "[services.a] where", "3 of 3"),
        (HEAD, a(8000, AT_RANK_3), "[services.a] where", "rank 3 of 3"),
        (ONE, a(8000, ALONE.format(2)), "[services.a] where", "a larger EXPECTED_WORKERS"),
        (KUBERAY, a(8000, EVERY), "[services.a] where", "no agent runs"),
        (KUBERAY, f'[prepare.a]\ncommand = "x"\n{EVERY}', "[prepare.a] where", "no agent runs"),
    ],
)
def test_conflicting_ports_and_missing_nodes_are_reported(
    environ: dict[str, str], text: str, where: str, words: str
) -> None:
    """Conflicting ports and nodes that do not exist are reported by file, table and key."""
    (problem,) = services_refused(environ, text)
    assert problem.variable.startswith(f"AGENT_SERVICES=s.toml {where}")
    assert words in problem.sentence()


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        (BY_TORCHRUN, a(10500)),
        (HEAD, a(10500, ALONE.format(3))),
        ({}, a() + a(8000, 'where = "workers"', "b")),
        (ONE, a(8000, ALONE.format(1))),
        ({**HEAD, "EXPECTED_WORKERS": "0"}, a(8000, ALONE.format(1))),
        (HEAD, a(8000, ALONE.format(3))),
    ],
    ids=[
        "ports of a Ray that torchrun does not start",
        "ports of a Ray that a node alone does not join",
        "one port on nodes that never meet",
        *["a node alone is added to EXPECTED_WORKERS"] * 3,
    ],
)
def test_what_is_no_conflict(environ: dict[str, str], text: str) -> None:
    """Services beside no Ray, beside each other, and on a node of their own."""
    assert services_refused(environ, text) == []


def test_no_secret_of_a_file_is_printed() -> None:
    """A variable that is named as a secret, here or in a command, is masked as elsewhere."""
    text = f"""
[services.a]
command = "HF_TOKEN=hush-0123456789 serve"
ready.tcp = 8000
env = {{ HF_TOKEN = "{SECRET}", A = "b" }}
"""
    made = plan(HEAD, text)
    redactor = redactor_for({}, made.settings, made.texts_with_secrets)
    assert "hush-0123456789" not in render(made, redactor)
    assert SECRET not in redactor.clean(f"my token is {SECRET}")


@pytest.mark.parametrize(
    ("rank", "command", "fetches"),
    [
        *(("1", "serve", True), ("2", "serve", False), ("2", "serve $AGENT_MODEL", True)),
        ("2", 'serve"\nafter = ["model"]#', True),
    ],
)
def test_a_node_alone_fetches_no_model_of_the_jobs(
    rank: str, command: str, *, fetches: bool
) -> None:
    """It runs no share of the job; unless its own service names the model, it needs none."""
    text = f'[services.a]\ncommand = "{command}"\nready.tcp = 8001\nwhere = "rank 2"\nalone = true'
    environ = {**DSTACK, "DSTACK_NODE_RANK": rank, "AGENT_MODEL": "acme/tiny"}
    made = plan(environ, text, with_ray(MACHINE, hub="1.2.3"))
    assert ("AGENT_MODEL" in [step.name for step in made.steps]) is fetches


@pytest.mark.parametrize(("text", "asks"), [("[services.reward]\n", True), (a(), False)])
def test_a_recipe_asks_the_server_of_a_row(text: str, *, asks: bool) -> None:
    """The table replaces AGENT_REWARD: a recipe with an optional server uses this one."""
    environ = {**HEAD, "AGENT_JOB": "verl-grpo", "AGENT_MODEL": "/m", "AGENT_TRAIN_DATA": "/d"}
    facts = replace(MACHINE, gpus=8, cpus=64, framework=Framework("verl", "/opt/verl", "0.9.1"))
    job = services_plan(environ, text, facts, None).job
    assert job is not None
    assert any("{reward_url}" in word for word in job.argv) is asks


def test_the_reward_url_follows_its_row() -> None:
    """The table moves the reward server, and its URL names that node."""
    made = plan(HEAD, '[services.reward]\nwhere = "rank 1"\nready.within = "7m"')
    (spec,) = made.all_services
    assert made.services == ()
    assert (spec.within, spec.deadline_variable) == (420.0, "services.reward, ready.within")
    url = reward_url(made.all_services, Placeholders("10.0.0.7"))
    assert url == "http://10.0.0.7:5000/get_reward"
    made = plan(HEAD, '[services.reward]\ncommand = "serve"\n')
    assert made.all_services[0].command(Placeholders()) == ["/bin/sh", "-c", "serve"]


def test_the_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the variable to the plan; its problems are reported with all others."""
    monkeypatch.setattr(read, "gather", lambda *_, **__: MACHINE)
    file = tmp_path / "s.toml"
    file.write_text(FILE.replace("/data", str(tmp_path)))
    environ = {**HEAD, "AGENT_SERVICES": str(file)}
    made = plan_input.plan_from_environment(environ, ["true"])
    assert [spec.name for spec in made.all_services] == ["finder", "judge"]
    assert made.facts.disks == {f"{tmp_path}/.done": disk_of(f"{tmp_path}/x")}
    file.write_text("[services.x]\n")
    for more, count in (({"RAY_WORKER": "0"}, 2), ({"EXPECTED_WORKERS": "some"}, 3)):
        with pytest.raises(SettingsError) as caught:
            plan_input.plan_from_environment({**environ, **more}, ["true"])
        assert len(caught.value.problems) == count
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(SettingsError, match=r"AGENT_SERVICES: got .*there on every node"):
            plan_input.plan_from_environment({**environ, "AGENT_SERVICES": str(path)}, ["true"])


def test_disks_are_named_alike() -> None:
    """Paths in one folder have one disk, whether they exist or not."""
    assert disk_of("/nowhere/at/all") == disk_of("/")
    assert disk_of("/proc/x") == "proc"


def example(name: str, **environ: str) -> ServicesFile:
    """Return an example beside the tables that its recipe brings."""
    text = (EXAMPLES / f"services/{name}.toml").read_text(encoding="utf-8")
    settings = settings_of(environ)
    brought = recipe_tables(settings, None, None) if environ else {}
    file, problems = parse(text, "s.toml", settings, brought)
    assert problems == []
    return file


def test_the_example_for_search_r1_is_right() -> None:
    """It is a file that every node of a cluster can have."""
    file = example("search-r1")
    assert [(spec.name, spec.port) for spec in file.services] == [("retriever", 8000)]
    assert file.steps[0].once == "/root/data/.prepared-index"


def test_the_example_for_slime_is_right() -> None:
    """It changes the tables that the recipe brings, and keeps all other keys."""
    file = example("slime-grpo", AGENT_JOB="slime-grpo", AGENT_MODEL="/v/m", AGENT_TRAIN_DATA="/t")
    (group,), (spec,) = file.groups, file.services
    assert (group.nodes, group.part, group.min, group.lost) == (3, None, 2, "retry")
    assert (spec.within, spec.keep, spec.weights) == (3600.0, 2, "sglang")


def test_the_example_for_prime_rl_is_right() -> None:
    """It changes the engines that the recipe brings; their router stays on the head."""
    file = example(
        "prime-rl", AGENT_JOB="prime-rl", AGENT_MODEL="/v/my model", AGENT_TRAIN_DATA="text"
    )
    (group,), (engine, router) = file.groups, file.services
    assert (group.nodes, group.min) == (3, 4)
    assert (engine.weights, engine.restarts) == ("prime-rl", 20)
    assert "inference --vllm.model '/v/my model' --vllm.tensor-parallel-size 1" in engine.asked
    assert router.where.kind == "head"
    assert "--worker-urls {addresses:engine|url|space}" in router.asked


def test_the_example_for_trl_is_right() -> None:
    """The nodes of the group run its server, whose address the recipe is given."""
    file = example("trl-generation")
    (group,) = file.groups
    assert group.nodes == 1
    engine = next(spec for spec in file.services if spec.where.kind == "group")
    assert engine.weights == "nccl"
    assert (engine.port or 0) >= 31_000
    assert generation_of(file.services) == "{addresses:generation|url}"
