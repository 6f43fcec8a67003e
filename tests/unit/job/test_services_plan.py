"""Services in the plan: who runs which, what is refused, and how `plan` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.errors import Problem, SettingsError
from agent.job.recipe_services import generation_of, recipe_tables
from agent.job.services import Placeholders, digest, reward_url, wanted_steps
from agent.job.services_file import parse
from agent.node import read
from agent.node.facts import Framework
from agent.node.read import disk_of
from agent.plan.make import make_plan
from agent.plan.plan_services import service_problems
from agent.plan.show import render
from agent.platforms.resolve import resolve
from agent.run import plan_input
from agent.settings import load
from agent.settings.redact import redactor_for
from support.launches import EXAMPLES
from support.worlds import MACHINE, SECRET, settings_of, with_ray

if TYPE_CHECKING:
    from pathlib import Path

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
    """Return the plan of a node with a services file that must be right."""
    environ = {**environ, "AGENT_SERVICES": "s.toml"}
    loaded = load(environ, ["true"])
    file, problems = parse(text, "s.toml", loaded.settings)
    assert problems == []
    topology = resolve(environ, loaded.settings, facts)
    return make_plan(loaded, topology, facts, environ, {}, file)


def problems(environ: dict[str, str], text: str) -> list[Problem]:
    """Return the problems of a services file on this platform."""
    environ = {**environ, "AGENT_SERVICES": "s.toml"}
    loaded = load(environ, ["true"])
    file, wrong = parse(text, "s.toml", loaded.settings)
    assert wrong == []
    topology = resolve(environ, loaded.settings, MACHINE)
    return [*service_problems(loaded.settings, ("true",), topology, file)]


@pytest.mark.parametrize(("steps", "is_refused"), [(45, False), (46, True)])
def test_a_node_runs_no_more_than_its_report_has(steps: int, *, is_refused: bool) -> None:
    """Those of one rank count once: no node runs those of two."""
    ranks = "".join(
        f'[services.s{rank}{n}]\ncommand = "serve"\nready.tcp = {9000 + n}\nwhere = "rank {rank}"\n'
        for rank in (1, 2)
        for n in range(4)
    )
    more = "".join(f'[prepare.p{n}]\ncommand = "make"\n' for n in range(steps))
    every = '[services.finder]\ncommand = "serve"\nready.tcp = 8000\nwhere = "every"\n'
    found = problems(HEAD, ranks + every + more)
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
        ({}, f"[services.a]\n{READY.replace('8000', '8265')}", "[services.a] ready", "dashboard"),
        (
            {},
            f"[services.a]\n{READY.replace('8000', '8266')}",
            "[services.a]",
            "agent and a on 8266",
        ),
        ({}, f"[services.a]\n{READY.replace('8000', '10500')}", "[services.a]", "Ray's workers"),
        (
            {"AGENT_REWARD": "builtin"},
            f"[services.a]\n{READY.replace('8000', '5000')}",
            "[services.a] ready",
            "service reward server and a on 5000",
        ),
        (
            {},
            f"[services.a]\n{READY}[services.b]\n{READY}",
            "[services.b] ready",
            "service a and b on 8000",
        ),
        (
            {**DSTACK, "DSTACK_NODE_RANK": "0"},
            f'[services.a]\n{READY}where = "rank 3"',
            "[services.a] where",
            "rank 3 of 3",
        ),
        (
            {"AGENT_LAUNCHER": "torchrun"},
            f"[services.a]\n{READY.replace('8000', '6379')}",
            "[services.a] ready",
            "rendezvous and a on 6379",
        ),
        (HEAD, f'[services.a]\n{READY}where = "rank 3"', "[services.a] where", "rank 3 of 3"),
        (
            {"AGENT_HEAD": "10.0.0.5"},
            f'[services.a]\n{READY}where = "rank 2"\nalone = true',
            "[services.a] where",
            "a larger EXPECTED_WORKERS",
        ),
        (KUBERAY, f'[services.a]\n{READY}where = "every"', "[services.a] where", "no agent runs"),
        (
            KUBERAY,
            '[prepare.a]\ncommand = "x"\nwhere = "every"',
            "[prepare.a] where",
            "no agent runs",
        ),
        ({"AGENT_REWARD_PORT": "8266"}, "[services.reward]\n", "[services.reward]", "agent and"),
    ],
)
def test_conflicting_ports_and_missing_nodes_are_reported(
    environ: dict[str, str], text: str, where: str, words: str
) -> None:
    """Conflicting ports and nodes that do not exist are reported by file, table and key."""
    (problem,) = problems(environ, text)
    assert problem.variable.startswith(f"AGENT_SERVICES=s.toml {where}")
    assert words in problem.sentence()


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


def test_ports_of_a_ray_that_is_not_there() -> None:
    """Where no Ray runs, by torchrun or on a node alone, its ports are free."""
    text = f"[services.a]\n{READY.replace('8000', '10500')}"
    assert problems({"AGENT_LAUNCHER": "torchrun"}, text) == []
    assert problems(HEAD, f'{text}where = "rank 3"\nalone = true') == []
    assert problems(HEAD, f'{text}where = "rank 1"') != []


def test_one_port_on_two_nodes() -> None:
    """Services that never meet may have the same port."""
    text = f'[services.a]\n{READY}[services.b]\n{READY}where = "workers"'
    assert problems({}, text) == []


def test_a_node_alone_has_a_rank_of_its_own() -> None:
    """It is added to EXPECTED_WORKERS, also where the default is 0."""
    text = f'[services.a]\n{READY}where = "rank 1"\nalone = true'
    assert problems({"AGENT_HEAD": "10.0.0.5"}, text) == []
    assert problems({**HEAD, "EXPECTED_WORKERS": "0"}, text) == []
    assert problems(HEAD, text.replace("rank 1", "rank 3")) == []


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


def test_a_recipe_asks_the_server_of_a_row() -> None:
    """The table replaces AGENT_REWARD: a recipe with an optional server uses this one."""
    environ = {**HEAD, "AGENT_JOB": "verl-grpo", "AGENT_MODEL": "/m", "AGENT_TRAIN_DATA": "/d"}
    facts = replace(MACHINE, gpus=8, cpus=64, framework=Framework("verl", "/opt/verl", "0.9.1"))
    loaded = load({**environ, "AGENT_SERVICES": "s.toml"}, None)
    topology = resolve(environ, loaded.settings, facts)
    for text, asks in (("[services.reward]\n", True), (f"[services.a]\n{READY}", False)):
        file, _ = parse(text, "s.toml", loaded.settings)
        job = make_plan(loaded, topology, facts, environ, {}, file).job
        assert job is not None
        assert any("{reward_url}" in word for word in job.argv) is asks


def test_the_reward_url_follows_its_row() -> None:
    """The table moves the reward server, and its URL names that node."""
    made = plan(HEAD, '[services.reward]\nwhere = "rank 1"\nready.within = "7m"')
    (spec,) = made.all_services
    assert made.services == ()
    assert (spec.within, spec.deadline_variable) == (420.0, "services.reward, ready.within")
    assert (
        reward_url(made.all_services, Placeholders("10.0.0.7")) == "http://10.0.0.7:5000/get_reward"
    )
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
    with pytest.raises(SettingsError) as caught:
        plan_input.plan_from_environment({**environ, "RAY_WORKER": "0"}, ["true"])
    assert len(caught.value.problems) == 2
    with pytest.raises(SettingsError) as caught:
        plan_input.plan_from_environment({**environ, "EXPECTED_WORKERS": "some"}, ["true"])
    assert len(caught.value.problems) == 3
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(SettingsError, match=r"AGENT_SERVICES: got .*there on every node"):
            plan_input.plan_from_environment({**environ, "AGENT_SERVICES": str(path)}, ["true"])


def test_disks_are_named_alike() -> None:
    """Paths in one folder have one disk, whether they exist or not."""
    assert disk_of("/nowhere/at/all") == disk_of("/")
    assert disk_of("/proc/x") == "proc"


def test_the_example_is_right() -> None:
    """The example for Search-R1 is a file that every node of a cluster can have."""
    text = (EXAMPLES / "services/search-r1.toml").read_text(encoding="utf-8")
    made = plan(HEAD, text)
    assert [(spec.name, spec.port) for spec in made.all_services] == [("retriever", 8000)]
    assert made.steps[0].once == "/root/data/.prepared-index"


def test_the_example_for_slime_is_right() -> None:
    """It changes the tables that the recipe brings, and keeps all other keys."""
    text = (EXAMPLES / "services/slime-grpo.toml").read_text(encoding="utf-8")
    settings = settings_of(
        {"AGENT_JOB": "slime-grpo", "AGENT_MODEL": "/v/m", "AGENT_TRAIN_DATA": "/v/t.jsonl"}
    )
    file, problems = parse(text, "s.toml", settings, recipe_tables(settings, None, None))
    assert problems == []
    (group,), (spec,) = file.groups, file.services
    assert (group.nodes, group.part, group.min, group.lost) == (3, None, 2, "retry")
    assert (spec.within, spec.keep, spec.weights) == (3600.0, 2, "sglang")


def test_the_example_for_prime_rl_is_right() -> None:
    """It changes the engines that the recipe brings; their router stays on the head."""
    text = (EXAMPLES / "services/prime-rl.toml").read_text(encoding="utf-8")
    settings = settings_of(
        {"AGENT_JOB": "prime-rl", "AGENT_MODEL": "/v/my model", "AGENT_TRAIN_DATA": "reverse-text"}
    )
    file, problems = parse(text, "s.toml", settings, recipe_tables(settings, None, None))
    assert problems == []
    (group,) = file.groups
    assert (group.nodes, group.min) == (3, 4)
    engine, router = file.services
    assert (engine.weights, engine.restarts) == ("prime-rl", 20)
    assert "inference --vllm.model '/v/my model' --vllm.tensor-parallel-size 1" in engine.asked
    assert router.where.kind == "head"
    assert "--worker-urls {addresses:engine|url|space}" in router.asked


def test_the_example_for_trl_is_right() -> None:
    """The nodes of the group run its server, whose address the recipe is given."""
    text = (EXAMPLES / "services/trl-generation.toml").read_text(encoding="utf-8")
    settings = settings_of(
        {"AGENT_JOB": "trl-grpo", "AGENT_MODEL": "/v/m", "AGENT_TRAIN_DATA": "/v/t.jsonl"}
    )
    file, problems = parse(text, "s.toml", settings)
    assert problems == []
    (group,) = file.groups
    assert group.nodes == 1
    engine = next(spec for spec in file.services if spec.where.kind == "group")
    assert engine.weights == "nccl"
    assert (engine.port or 0) >= 31_000
    assert generation_of(file.services) == "{addresses:generation|url}"
