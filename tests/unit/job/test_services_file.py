"""The services file: what its tables become, and everything that can be wrong with them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.frameworks.recipe import ModelShape
from agent.frameworks.sizing import least_engine
from agent.job.groups import NodeGroup, place_groups
from agent.job.recipe_services import recipe_tables
from agent.job.services import (
    NO_FILE,
    ON_EVERY,
    ON_HEAD,
    HttpProbe,
    LivenessCheck,
    LogPattern,
    Placeholders,
    ServicesFile,
    TcpProbe,
    Where,
    wanted_steps,
)
from agent.job.services_file import parse
from support.worlds import settings_of

SETTINGS = settings_of({})
FULL = """
[services.retriever]
command = "bash retrieval_launch.sh {rank}"
where = "every"
alone = false
ready.http = "http://{node_ip}:8000/retrieve"
ready.body = '{"queries": ["x"], "topk": 1, "return_scores": true}'
ready.expect = "result"
ready.within = "15m"
alive = { every = "10s", within = "60s", misses = 3 }
restarts = 5
essential = false
env = { HF_HOME = "/data/hf" }
after = ["gsm8k", "model", "gsm8k"]

[prepare.gsm8k]
command = "make data"
where = "every"
once = "/data/gsm8k/.prepared"
within = "3h"
after = ["AGENT_PREPARE", "reward"]
"""
COMMAND = 'command = "serve"\n'
READY = "ready.tcp = 8000\n"


def read(text: str) -> ServicesFile:
    """Return the contents of a valid file."""
    found, problems = parse(text, "s.toml", SETTINGS)
    assert problems == []
    return found


def wrong(text: str, **environ: str) -> list[str]:
    """Return everything that is wrong with a file."""
    settings = settings_of(environ)
    return [problem.sentence() for problem in parse(text, "s.toml", settings)[1]]


def service(lines: str) -> str:
    """Return a file of one service."""
    return f"[services.retriever]\n{lines}"


def and_(lines: str) -> str:
    """Return a file of a service with what it needs, and these lines."""
    return service(COMMAND + READY + lines)


def step(lines: str) -> str:
    """Return a file of one prepare step."""
    return f"[prepare.data]\ncommand = 'x'\n{lines}"


ENGINE = "[services.engine]\ncommand = 'serve {port}'\nwhere = 'rollout'\ngpus = 2\n"


def group(lines: str) -> str:
    """Return a file of one group, and a service that runs there."""
    return f"[groups.rollout]\n{lines}\n{ENGINE}ready.tcp = '{{port}}'\n"


def test_a_group() -> None:
    """Its service has members, each with a port that the agent gives it."""
    found = read(group("nodes = 4\nmin = 2\nlost = 'retry'"))
    assert found.groups == (NodeGroup("rollout", 4, min=2, lost="retry"),)
    (spec,) = found.services
    assert (spec.where, spec.restarts) == (Where("group", group="rollout"), 10)
    first, second = spec.members(2)
    assert [(one.name, one.log) for one in (first, second)] == [
        ("engine.0", "engine.0.log"),
        ("engine.1", "engine.1.log"),
    ]
    assert first.command(Placeholders()) == ["/bin/sh", "-c", "serve 31000"]
    assert second.command(Placeholders()) == ["/bin/sh", "-c", "serve 31001"]
    assert second.ready == TcpProbe(31_001)


def test_a_part_of_the_nodes() -> None:
    """It is rounded down, has at least one node, and is that of the whole run."""
    (half,) = read(group("nodes = '1/2'")).groups
    assert half.part == (1, 2)
    sizes = [place_groups((half,), nodes)[0] for nodes in (1, 2, 3, 8)]
    assert [(one.nodes, one.first_rank) for one in sizes] == [(1, 0), (1, 1), (1, 2), (4, 4)]


def test_tables_that_a_recipe_brings() -> None:
    """The file replaces them key by key; without a file they are all there is."""
    brought = {
        "groups": {"rollout": {"nodes": "1/2"}},
        "services": {
            "engine": {
                "command": "serve {port}",
                "where": "rollout",
                "ready": {"tcp": "{port}", "within": "30m"},
            }
        },
    }
    found, problems = parse("", "", SETTINGS, brought)
    assert problems == []
    assert found.groups[0].part == (1, 2)
    text = "[groups.rollout]\nnodes = 3\n[services.engine]\nready.within = '1h'\n"
    found, problems = parse(text, "s.toml", SETTINGS, brought)
    assert problems == []
    assert (found.groups[0].nodes, found.groups[0].part) == (3, None)
    (spec,) = found.services
    assert (spec.asked, spec.ready, spec.within) == ("serve {port}", TcpProbe(31_000), 3600.0)
    assert brought["groups"] == {"rollout": {"nodes": "1/2"}}, "it is not changed"


def test_what_is_wrong_with_a_recipes_tables() -> None:
    """The recipe is named where no file is."""
    recipe = replace(settings_of({}), job="slime-grpo")
    (problem, *_) = parse("", "", recipe, {"groups": {"a": {}}})[1]
    assert problem.sentence().startswith("AGENT_JOB=slime-grpo [groups.a] nodes")


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("{addresses:engine}", ["a:1,b:2"]),
        ("--to={addresses:engine}", ["--to=a:1,b:2"]),
        ("{addresses:engine|space}", ["a:1", "b:2"]),
        ("{addresses:engine|url|space}", ["http://a:1", "http://b:2"]),
        ("{addresses:engine|json}", ['["a:1", "b:2"]']),
        ("{addresses:engine|url}", ["http://a:1,http://b:2"]),
        ("{addresses:other|space}", ["{addresses:other|space}"]),
    ],
)
def test_a_list_of_members(word: str, words: list[str]) -> None:
    """Each framework takes another form; with spaces it is several words."""
    assert Placeholders(members={"engine": ("a:1", "b:2")}).words(word) == words


def test_every_key() -> None:
    """All that a service and a step can say is taken over."""
    found = read(FULL)
    (spec,), (step,) = found.services, found.steps
    assert spec.command(Placeholders(rank="2")) == ["/bin/sh", "-c", "bash retrieval_launch.sh 2"]
    body = '{"queries": ["x"], "topk": 1, "return_scores": true}'
    assert spec.ready == HttpProbe("http://{node_ip}:8000/retrieve", body, "result")
    assert (spec.name, spec.where, spec.within) == ("retriever", ON_EVERY, 900.0)
    assert (spec.restarts, spec.essential, spec.port) == (5, False, 8000)
    assert (spec.alone, spec.alive, spec.log) == (False, LivenessCheck(), "retriever.log")
    assert spec.environment(Placeholders()) == {"HF_HOME": "/data/hf"}
    assert (step.name, step.where, step.within) == ("gsm8k", ON_EVERY, 10_800.0)
    assert (step.once, step.log) == ("/data/gsm8k/.prepared", "gsm8k.log")
    alone = replace(step, after=())
    assert wanted_steps((alone,)) == (alone,)
    assert spec.after == ("gsm8k", "AGENT_MODEL")
    assert step.after == ("AGENT_PREPARE", "reward server")


def test_the_least() -> None:
    """Missing keys have their defaults."""
    found = read(service(COMMAND + READY) + "[prepare.data]\ncommand = 'make'\n")
    (spec,), (step,) = found.services, found.steps
    assert (spec.where, spec.within, spec.restarts, spec.essential) == (ON_HEAD, 600.0, 3, True)
    assert (spec.ready, spec.alive, spec.alone) == (TcpProbe(8000), None, False)
    assert (step.where, step.within, step.once) == (ON_HEAD, 7200.0, None)
    assert wanted_steps((replace(step, where=ON_EVERY),)) == ()
    assert (spec.after, step.after) == ((), ())
    assert read("") == NO_FILE


def test_the_texts_of_the_reward_row() -> None:
    """Its table stands for AGENT_REWARD; without a command it is the bundled server."""
    found = read('[services.reward]\nwhere = "rank 2"\nalone = true\nready.within = "1m"\n')
    fields = found.reward_fields
    assert found.reward == "builtin"
    assert (fields["where"], fields["alone"], fields["within"]) == (Where("rank", 2), True, 60.0)
    found = read("[services.reward]\ncommand = 'serve'\nready.log = 'up'\n")
    fields = found.reward_fields
    assert found.reward == "serve"
    assert fields == {"ready": LogPattern("up")}
    assert read("[services.reward]\nafter = []\n").reward_fields["after"] == ()


@pytest.mark.parametrize(
    ("ready", "port"),
    [
        ("ready.tcp = 81", 81),
        ("ready.http = 'http://{node_ip}:82/x'", 82),
        ("ready.http = 'http://localhost/x'", 80),
        ("ready.http = 'https://127.0.0.1/x'", 443),
        ("ready.http = 'http://{head_ip}:82/x'", None),
        ("ready.http = 'http://elsewhere:82/x'", None),
        ("ready.log = 'up'", None),
    ],
)
def test_the_port_of_a_service(ready: str, port: int | None) -> None:
    """The port of a service is where its own node probes it."""
    assert read(service(COMMAND + ready)).services[0].port == port


RAY_GROUP = "[groups.{}]\nnodes = 1\nray = true\n"
A_CYCLE = and_("after = ['data']\n") + step("after = ['reward']\n")


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("[services", "", "no TOML"),
        ("x = 1", "x", "an unknown key; expected one of services, prepare"),
        ("services = 1", "services", "got `int`"),
        ("[services]\nretriever = 1", "services[...]", "got `int`; expected `object`"),
        ("[services.'a b']\n" + COMMAND + READY, "[services.a b]", "letters, digits and dashes"),
        ("[services.head]\n" + COMMAND + READY, "[services.head]", "is taken"),
        (service(READY), "[services.retriever] command", "got nothing"),
        (service("command = 3\n" + READY), "[services.retriever] command", "got `int`"),
        (service("command = ' '\n" + READY), "[services.retriever] command", "`str`"),
        (service(COMMAND), "[services.retriever] ready", "nothing; expected a value"),
        (and_("ready.log = 'x'"), "ready", "got log, tcp"),
        (service(COMMAND + "ready.tcp = '1'"), "[services.retriever] ready.tcp", "or {port}"),
        (service(COMMAND + "ready.tcp = 70000"), "[services.retriever] ready.tcp", "<= 65535"),
        (service(COMMAND + "ready.log = '('"), "[services.retriever] ready.log", "missing )"),
        (service(COMMAND + "ready.http = 'x'"), "[services.retriever] ready.http", "a URL"),
        (service(COMMAND + "ready.http = 'http://'"), "[services.retriever] ready.http", "a URL"),
        (service(COMMAND + "ready.http = 'http://[x'"), "ready.http", "a URL"),
        (service(COMMAND + "ready.http = 'http://{nod_ip}:9/x'"), "ready.http", "a URL"),
        (and_("ready.body = 'x'"), "ready", "without http"),
        (and_("ready.expect = 'x'"), "ready", "without http"),
        (and_("ready.within = 'soon'"), "ready.within", "a duration"),
        (and_("ready.within = true"), "ready.within", "got `bool`"),
        (and_("ready.x = 1"), "ready.x", "an unknown key"),
        (service(COMMAND + "ready = 1"), "[services.retriever] ready", "got `int`"),
        (and_("where = 'all'"), "where", "head, every, workers"),
        (and_("where = 2"), "where", "got `int`"),
        (and_("alone = true"), "alone", 'where = "rank N"'),
        (and_("alone = true\nwhere = 'rank 0'"), "alone", "from 1 on"),
        (and_("alone = 'no'"), "alone", "expected `bool`"),
        (and_("restarts = -1"), "restarts", "`int` >= 0"),
        (and_("essential = 1"), "essential", "expected `bool`"),
        (and_("env = 1"), "env", "expected `object`"),
        (and_("env = { A = 1 }"), "env", "expected `str`"),
        (and_("alive = { x = 1 }"), "alive.x", "an unknown key"),
        (and_("ports = 1"), "ports", "an unknown key; expected one of command"),
        (and_("gpus = -1"), "gpus", "`int` >= 0"),
        ("[services.reward]\nwhere = 'every'", "[services.reward] where", "head|rank"),
        ("[prepare.data]", "[prepare.data] command", "got nothing"),
        (step("once = 'here'"), "once", "`str` matching"),
        (step("where = 'workers'"), "where", "head|every"),
        (step("within = '0'"), "within", "a duration above 0"),
        (and_("after = 'x'"), "[services.retriever] after", "`array`"),
        (and_("after = ['x', 1]"), "after[1]", "`str`"),
        (and_("after = ['a']"), "after", "the unknown name 'a'; expected names out of AGENT_MODEL"),
        (and_("router = 'http://10.0.0.1:8005'"), "router", "for a service without ready.http"),
        (and_("router = '10.0.0.1:8005'"), "router", "matching regex"),
        (step("after = ['data']"), "[prepare.data] after", "a cycle (data waits for data)"),
        (
            "[services.reward]\nafter = ['reward']",
            "[services.reward] after",
            "a cycle (reward server waits for reward server)",
        ),
        (
            A_CYCLE + "[services.reward]\nafter = ['retriever']",
            "[services.retriever] after",
            "retriever waits for data waits for reward server waits for retriever",
        ),
        (and_("[prepare.retriever]\ncommand = 'x'"), "[prepare.retriever]", "is taken"),
        (group(""), "[groups.rollout] nodes", "got nothing"),
        (group("nodes = 0"), "[groups.rollout] nodes", "got 0; expected a number from 1 on, or"),
        (group("nodes = '2/2'"), "[groups.rollout] nodes", 'a part below 1, as "1/2"'),
        (group("nodes = 'half'"), "[groups.rollout] nodes", "got 'half'; expected a number from 1"),
        (group("nodes = 1") + "keep = 2\n", "[services.engine] keep", "without a front"),
        (group("nodes = 1\nlost = 'no'"), "lost", "got 'no'; expected one of wait, retry, end"),
        (group("nodes = 1") + "weights = 'vllm'\n", "weights", "one of sglang, prime-rl, nccl"),
        (RAY_GROUP.format("trainer"), "[groups.trainer]", "is taken"),
        (RAY_GROUP.format("Trainer"), "[groups.Trainer]", "is taken"),
        (RAY_GROUP.format("envs") + RAY_GROUP.format("Envs"), "[groups.Envs]", "is taken"),
        ("[groups.rollout]\nnodes = 1", "[groups.rollout]", "without a service"),
        (group("nodes = 1") + and_("where = 'judges'"), "where", "rollout"),
        (and_("weights = 'nccl'"), "weights", "in a group"),
        (
            group("nodes = 1\n")
            .replace("{port}", "1")
            .replace("tcp = '1'", "log = 'up'\nweights = 'sglang'"),
            "[services.engine] ready",
            "no port",
        ),
        (
            group("nodes = 1\n") + and_("where = 'rollout'\ngpus = 1"),
            "[services.retriever] gpus",
            "one service with gpus in a group",
        ),
        (service("command = 'a {port}'\n" + READY), "ready", "{port} in ready, too"),
        (service(COMMAND + "ready.tcp = '{port}'"), "ready", "{port} in its command, too"),
    ],
)
def test_what_is_wrong(text: str, where: str, words: str) -> None:
    """A problem names the file, the table, the key and the expected value."""
    (problem,) = wrong(text)
    assert problem.startswith("AGENT_SERVICES=s.toml")
    assert where in problem.partition(": got ")[0]
    assert words in problem


def test_all_problems_together() -> None:
    """One bad table does not hide the next, nor what is missing."""
    found = wrong(service("where = 'x'\nrestarts = 'y'\n") + "[prepare.x]\nwithin = 'z'")
    assert len(found) == 5


def test_two_reward_servers() -> None:
    """The table and AGENT_REWARD exclude each other."""
    (problem,) = wrong("[services.reward]\n", AGENT_REWARD="builtin")
    assert problem.startswith("AGENT_SERVICES + AGENT_REWARD: ")


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text is a traceback."""
    _, problems = parse(text, "s.toml", SETTINGS)
    assert all(re.match("AGENT_SERVICES", problem.variable) for problem in problems)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=3,
)


def toml(value: object) -> str:
    """Write a value as TOML; '' for an unsupported type."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value % 100_000)
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items()) + "}"
    text = "".join(c for c in str(value) if c.isalnum() and c.isascii())
    return f'"{text}"'


KEYS = (
    *("command", "where", "alone", "ready", "alive", "restarts", "env", "once", "within", "after"),
)


@given(st.sampled_from(["services", "prepare"]), st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_any_values_are_read_or_refused(kind: str, values: dict[str, object]) -> None:
    """Whatever a key holds, it is taken or named."""
    lines = [f"{key} = {toml(value)}" for key, value in values.items()]
    _, problems = parse("\n".join([f"[{kind}.x]", *lines]), "s.toml", SETTINGS)
    assert all(problem.variable.startswith("AGENT_SERVICES=s.toml") for problem in problems)


@pytest.mark.parametrize(
    ("one", "other", "meets"),
    [
        (ON_HEAD, ON_HEAD, True),
        (ON_HEAD, ON_EVERY, True),
        (ON_HEAD, Where("workers"), False),
        (ON_HEAD, Where("rank", 1), False),
        (Where("workers"), Where("rank", 1), True),
        (Where("rank", 1), Where("rank", 1), True),
        (Where("rank", 1), Where("rank", 2), False),
    ],
)
def test_where_two_may_meet(one: Where, other: Where, meets: bool) -> None:  # noqa: FBT001 - a table
    """Two services may have one port where no node has both."""
    assert one.meets(other) is meets
    assert other.meets(one) is meets


# --- what a recipe brings ---------------------------------------------------------------------

NEEDED = {"AGENT_JOB": "slime-grpo", "AGENT_MODEL": "/v/my model", "AGENT_TRAIN_DATA": "/v/t.jsonl"}


def engine(model: ModelShape | None = None, **more: str) -> dict[str, Any]:
    """Return the table of slime's engine."""
    tables = recipe_tables(settings_of({**NEEDED, **more}), None, model)
    found: dict[str, Any] = tables["services"]["engine"]
    return found


def test_the_engine_has_the_models_words() -> None:
    """A shell reads the model as one word; a pinned revision stands beside it."""
    assert "--model-path '/v/my model' --host {node_ip} --port {port} --tp 1" in engine()["command"]
    pinned = engine(AGENT_MODEL="org/m", AGENT_MODEL_REVISION="abc")["command"]
    assert "--model-path org/m --revision abc --host" in pinned


@pytest.mark.parametrize(
    ("name", "given", "gpus"),
    [
        ("Qwen3-8B", {}, 1),
        ("Qwen3-32B", {}, 2),
        ("Qwen2.5-72B", {}, 4),
        ("Qwen3-235B-A22B", {}, 8),
        ("unknown", {}, 1),
        ("Qwen3-8B", {"AGENT_TENSOR_PARALLEL": "4"}, 4),
    ],
)
def test_the_gpus_of_an_engine(name: str, given: dict[str, str], gpus: int) -> None:
    """AGENT_TENSOR_PARALLEL, else by the size of the model; a number, not a text."""
    found = engine(ModelShape.from_name(name), **given)
    assert found["gpus"] == gpus
    assert f"--tp {gpus} " in found["command"]


def test_the_largest_engine_is_a_node() -> None:
    """A model of any size has an engine of eight GPUs at most."""
    assert least_engine(ModelShape.from_name("Kimi-K2-1000B")) == 8


def test_its_tables_are_valid() -> None:
    """They are a file of AGENT_SERVICES, with half of the nodes."""
    settings = settings_of(NEEDED)
    file, problems = parse("", "", settings, recipe_tables(settings, None, None))
    assert problems == []
    (group,) = file.groups
    (spec,) = file.services
    assert (group.name, group.part) == ("rollout", (1, 2))
    assert (spec.weights, spec.keep, spec.after) == ("sglang", 2, ("AGENT_MODEL",))


@pytest.mark.parametrize("job", ["verl-grpo", "trl-grpo", "openrlhf-sft"])
def test_most_recipes_bring_none(job: str) -> None:
    """Nor does a command of one's own."""
    assert recipe_tables(settings_of({**NEEDED, "AGENT_JOB": job}), None, None) == {}
    assert recipe_tables(settings_of({}), ("python", "train.py"), None) == {}
