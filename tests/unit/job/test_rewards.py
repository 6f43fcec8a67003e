"""The reward server: its judge, what is refused, and the format of each framework's client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from agent.bundled import reward_server as bundled
from agent.bundled.judge import JudgeSpec
from agent.bundled.reward_server import read_judge
from agent.job import services
from agent.job.services import JudgeCost, Placeholders, ServicesFile, reward_service
from agent.job.services_file import parse
from agent.plan import environment
from agent.plan.plan_services import all_services, service_problems, with_places
from agent.platforms.resolve import resolve
from agent.run.node_run import NodeStats
from agent.settings import load
from agent.settings.jobs import BY_NAME
from support.reward_process import RewardProcess, ask, reward_server
from support.worlds import MACHINE, SECRET, plan_of, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator

INSIDE = """
[services.judge]
command = "vllm serve Qwen/Qwen2.5-7B-Instruct --host {node_ip} --port 8001"
where = "rank 1"
gpus = 1
ready.http = "http://{node_ip}:8001/v1/models"
"""
ASK = """
ask.api = "chat"
ask.template = "{prompt} {answer}"
ask.grade = "score: ([0-9]+)"
ask.values = { good = 1 }
ask.range = [0, 10]
ask.class = 1
ask.ungraded = 0
ask.options = { max_tokens = 64 }
ask.parallel = 8
ask.within = "30s"
ask.tries = 2
"""
OUTSIDE = {"AGENT_JUDGE_URL": "https://judge.example/v1"}


def read(text: str, **environ: str) -> tuple[Any, ServicesFile, list[str]]:
    """Return settings, the file, and all problems of both."""
    needed = {"AGENT_REWARD": "judge", "AGENT_SERVICES": "s.toml", "EXPECTED_WORKERS": "1"}
    environ = {**needed, **environ}
    loaded = load({n: text for n, text in environ.items() if text}, ["true"])
    file, wrong = parse(text, "s.toml", loaded.settings)
    topology = resolve({}, loaded.settings, MACHINE)
    more = service_problems(loaded.settings, ("true",), topology, file)
    return loaded.settings, file, [one.sentence() for one in (*wrong, *more)]


def asked(text: str, **environ: str) -> JudgeSpec:
    """Return what the reward server is started with."""
    settings, file, _ = read(text, **environ)
    reward = all_services(settings, ("true",), file)[0]
    place = Placeholders("10.0.0.1", "10.0.0.1", "0", "/logs", {"judge": "10.0.0.2"})
    argv = reward.command(place)
    return read_judge(argv[argv.index("--judge") + 1])


def test_a_judge_beside_the_job() -> None:
    """The reward server starts after it, and asks it at the address of its node."""
    settings, file, _ = read(INSIDE)
    reward = all_services(settings, ("true",), file)[0]
    assert reward.after == ("judge",)
    assert reward.addressed == ("judge",)
    assert reward.secrets == ("AGENT_JUDGE_KEY",)
    assert asked(INSIDE) == JudgeSpec("http://10.0.0.2:8001")


def test_judges_in_a_group() -> None:
    """All members are asked, once the group's nodes are known."""
    text = "[groups.judges]\nnodes = 1\n" + INSIDE.replace("rank 1", "judges")
    settings, file, _ = read(text)
    file = with_places(file, resolve({}, settings, MACHINE), settings)
    assert [*service_problems(settings, ("true",), resolve({}, settings, MACHINE), file)] == []
    reward = all_services(settings, ("true",), file)[0]
    assert reward.after == ("judge",)
    assert reward.listed_members == ("judge",)
    assert reward.judges == "{addresses:judge|url}"
    place = Placeholders(members={"judge": ("10.0.0.2:8001", "[fd00::3]:8001")})
    argv = reward.command(place)
    spec = read_judge(argv[argv.index("--judge") + 1])
    assert spec.url == "http://10.0.0.2:8001,http://[fd00::3]:8001"


def test_how_it_is_asked() -> None:
    """Every key of `ask`; braces of the template are none of the service's placeholders."""
    assert asked(INSIDE + ASK) == JudgeSpec(
        "http://10.0.0.2:8001",
        template="{prompt} {answer}",
        grade="score: ([0-9]+)",
        values={"good": 1.0},
        range=(0.0, 10.0),
        at=1,
        ungraded=0.0,
        options={"max_tokens": 64},
        parallel=8,
        within=30.0,
        tries=2,
    )


@pytest.mark.parametrize(
    ("text", "template"),
    [("", JudgeSpec("").template), ('[services.judge]\nask.template = "{answer}"\n', "{answer}")],
)
def test_a_judge_outside(text: str, template: str) -> None:
    """Its table has only how it is asked, or is not there; nothing is started for it."""
    environ = {**OUTSIDE, "AGENT_JUDGE_MODEL": "gpt"}
    settings, file, problems = read(text, **environ)
    (reward,) = all_services(settings, ("true",), file)
    assert problems == []
    assert reward.after == ()
    expected = JudgeSpec("https://judge.example/v1", model="gpt", template=template)
    assert asked(text, **environ) == expected


@pytest.mark.parametrize(
    ("text", "environ", "words"),
    [
        ("", {}, "AGENT_REWARD: got 'judge' without a judge"),
        (INSIDE, OUTSIDE, "AGENT_JUDGE_URL + AGENT_SERVICES=s.toml [services.judge]: got a judge"),
        (INSIDE.replace('http = "http://{node_ip}:8001/v1/models"', 'log = "up"'), {}, "a port"),
        (INSIDE.replace("rank 1", "workers"), {}, "[services.judge] where"),
        (f'{INSIDE}ask.model = "a"', {"AGENT_JUDGE_MODEL": "b"}, "ask.model: got a model in each"),
        (f'{INSIDE}ask.model = "a"', {"AGENT_REWARD": "builtin"}, "though AGENT_REWARD is builtin"),
        (f"{INSIDE}ask.modle = 'a'", {}, "ask.modle: got an unknown key"),
        (f"{INSIDE}ask.grade = '('", {}, "ask.grade"),
        (f"{INSIDE}ask.grade = 'Grade: [0-9]'", {}, "whose first group is the grade"),
        (f"{INSIDE}ask.range = [1, 0]", {}, "ask.range"),
        (f"{INSIDE}ask.range = [1]", {}, "ask.range"),
        (f"{INSIDE}ask.ungraded = nan", {}, "finite"),
        (f"{INSIDE}ask.template = 'grade this'", {}, "{answer} or {query} in it"),
        (f"{INSIDE}ask.template = '{{answer}} {{rank}}'", {}, "ask.template: got {rank}"),
        (f"{INSIDE}ask.options = {{ when = 2026-01-01 }}", {}, "values that JSON has"),
        (f"{INSIDE}ask.parallel = 0", {}, "ask.parallel"),
        (f"{INSIDE}ask.within = 'soon'", {}, "ask.within"),
        (f"{INSIDE}ask.api = 'rank'", {}, "ask.api"),
        (f"{INSIDE}ask.path = 'v1/score'", {}, "ask.path"),
    ],
)
def test_what_is_refused(text: str, environ: dict[str, str], words: str) -> None:
    """With the table and the key."""
    problems = read(text, **environ)[2]
    assert len(problems) == 1, problems
    assert words in problems[0]


def test_only_the_reward_server_gets_the_key() -> None:
    """Neither Ray, the job nor another service has it in its environment."""
    environ = {"RAY_WORKER": "0", "AGENT_REWARD": "judge", **OUTSIDE, "AGENT_JUDGE_KEY": SECRET}
    plan = plan_of(environ, command=["true"])
    full = plan.environment("10.0.0.1", "10.0.0.1")
    assert SECRET not in full.values()
    assert SECRET not in environment.without_cluster_auth(full, plan.settings).values()
    (reward,) = plan.all_services
    assert reward.secrets == ("AGENT_JUDGE_KEY",)
    assert SECRET not in json.dumps(reward.argv)


def test_what_it_cost() -> None:
    """By the header of a reply; a restarted reward server counts anew, the sum goes on."""
    line = "requests=3 prompt_tokens=120 completion_tokens=9 ungraded=1"
    cost = JudgeCost.read(line)
    assert cost == JudgeCost(3, 120, 9, 1)
    for wrong in ("", "requests=3", line.replace("3", "-3"), f"{line} more=1", line + "9" * 20):
        assert JudgeCost.read(wrong) is None
    stats = NodeStats(str)
    assert stats.snapshot().judge is None
    for one in (JudgeCost(2, 80, 6), JudgeCost(3, 120, 9, 1), JudgeCost(1, 40, 3)):
        stats.record_judge(one)
    assert stats.snapshot().judge == JudgeCost(4, 160, 12, 1)


def test_the_headers_of_its_probes() -> None:
    """The reward server imports nothing of the agent's, and has the same names of headers."""
    of_agent = (services.RUN_NODES, services.RUN_JUDGES, services.PROBE_KEY, services.JUDGE_TOTALS)
    own = (bundled.NODES, bundled.JUDGES, bundled.PROBE_KEY, bundled.TOTALS)
    assert own == of_agent
    assert bundled.AWAITED == services.JUDGE_AWAITED


# --- the format of each framework's client ----------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[RewardProcess]:
    """One server for the tests that only ask."""
    with reward_server() as process:
        yield process


def test_openrlhf_ms_replies_hold_only_lists() -> None:
    """It turns every key into a tensor; it sends labels of null, and has its own reward's keys."""
    with reward_server("--dialect", "openrlhf-m") as server:
        asked = {"query": ["7", "no idea"], "prompts": ["3+4?", "3+4?"], "labels": [7, None]}
        body = ask(server.url, asked).body
    assert body == {
        "rewards": [1.0, 0.0],
        "format_rewards": [1.0, 0.0],
        "acc_rewards": [1.0, 0.0],
    }


@pytest.mark.parametrize(
    ("label", "reward"), [("7", 1.0), (7, 1.0), ("8", 0.0), (None, 0.0)], ids=str
)
@pytest.mark.parametrize("prompt", ["3+4?", [{"role": "user", "content": "3+4?"}], None], ids=str)
def test_slime_gets_a_bare_number(
    server: RewardProcess, prompt: object, label: object, reward: float
) -> None:
    """Slime and miles send one sample, and take the whole reply for its reward."""
    asked = {"prompt": prompt, "response": "it is 7", "label": label}
    reply = ask(server.url, asked)
    assert [reply.status, reply.body] == [200, reward]


@pytest.mark.parametrize(
    ("field", "wrong"), [("response", 7), ("response", ["7"]), ("label", True), ("label", [7])]
)
def test_slimes_mistakes_are_named(server: RewardProcess, field: str, wrong: object) -> None:
    """A field of the wrong form is 400, by its own name."""
    reply = ask(server.url, {"prompt": "3+4?", "response": "7", "label": "7", field: wrong})
    assert reply.status == 400
    assert reply.body["error"].endswith(f"at `$.{field}`")


@pytest.mark.parametrize("job", BY_NAME)
def test_the_plan_chooses_the_dialect(job: str) -> None:
    """OpenRLHF-M has one of its own; everybody else takes the server's first."""
    settings = replace(settings_of({}), job=job, reward="builtin")
    service = reward_service(settings, None)
    assert service is not None
    assert service.argv is not None
    dialect_args = service.argv[service.argv.index("--path") + 2 :]
    assert dialect_args == (("--dialect", "openrlhf-m") if job == "openrlhf-m-grpo" else ())
