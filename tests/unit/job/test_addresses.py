"""`{address:NAME}`: it is filled in, waited for, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import replace

from agent.base.ends import Outcome
from agent.decisions import worker
from agent.decisions.head import head_state as h
from agent.decisions.head.service_addresses import addresses_by_rank
from agent.decisions.shared import HERE, LogLine, NodeWanted, Want
from agent.decisions.worker import worker_state as w
from agent.frameworks.recipe import JobBasis
from agent.job.addresses import address_problems, ranked_and_named, with_addresses
from agent.job.job import fill
from agent.job.services import (
    ON_EVERY,
    ON_HEAD,
    REWARD,
    SHELL,
    Placeholders,
    PrepareStep,
    ServicesFile,
    ServiceSpec,
    TcpProbe,
    Where,
)
from agent.run.head_job import Submission, SubmissionMaker
from support import workers
from support.heads import HEAD, LIMITS, Started, Trace, goal, nodes, reported
from support.worlds import plan_of, settings_of

if TYPE_CHECKING:
    from agent.decisions.head.head_goal import HeadGoal


def spec(name: str, where: Where = ON_HEAD, command: str = "serve", **env: str) -> ServiceSpec:
    """Return a service with a shell command."""
    argv = (*SHELL, command)
    ready = TcpProbe(8000)
    return ServiceSpec(
        name, command, argv, ready, 60.0, "within", where=where, env=tuple(env.items())
    )


RANK_2 = Where("rank", 2)
JUDGE = spec("judge", RANK_2)
TOOL = spec("tool", command="ask http://{address:judge}:8000")
EVERY = spec("cache", ON_EVERY)
SERVER = spec(REWARD)
PLACE = Placeholders("10.0.0.2", "10.0.0.1", "1", "/logs")


# --- what is filled in ---------------------------------------------------------------------------


def test_where_a_service_runs() -> None:
    """On the head, on this node, or on the node of a rank; of every worker there is no address."""
    services = (JUDGE, EVERY, SERVER, spec("many", Where("workers")))
    place = with_addresses(PLACE, services, {"judge": "10.0.0.9"})
    assert place.addresses == {"judge": "10.0.0.9", "cache": "10.0.0.2", "reward": "10.0.0.1"}
    assert "judge" not in with_addresses(PLACE, services, {}).addresses
    assert with_addresses(PLACE, services, {"judge": ""}).addresses["judge"] == "10.0.0.1"


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("http://{address:judge}:8000/v1", "http://[fd00::9]:8000/v1"),
        ("--host {address:judge}", "--host fd00::9"),
        ("{address:judge}:8000", "[fd00::9]:8000"),
        ("{address:other} ${address:judge}", "{address:other} ${address:judge}"),
    ],
)
def test_its_form(text: str, filled: str) -> None:
    """Brackets around IPv6 where a URL or a port needs them; what is unknown stays."""
    place = replace(PLACE, addresses={"judge": "fd00::9"})
    assert place.fill(text) == place.fill_addresses(text) == filled
    assert fill((text,), [8], place, "", 1, "") == [filled]


def test_in_commands_and_environments() -> None:
    """Of services and steps."""
    place = with_addresses(PLACE, (JUDGE,), {"judge": "10.0.0.9"})
    tool = spec("tool", command="ask {address:judge}", JUDGE="http://{address:judge}:8000")
    assert tool.command(place) == ["/bin/sh", "-c", "ask 10.0.0.9"]
    assert tool.environment(place) == {"JUDGE": "http://10.0.0.9:8000"}
    assert tool.addressed == ("judge",)
    assert replace(spec("engine"), router="http://{address:judge}:8005").addressed == ("judge",)
    step = PrepareStep("data", "curl {address:judge}", ON_HEAD, 60.0)
    assert step.argv(place)[2] == "curl 10.0.0.9"


# --- what is refused ------------------------------------------------------------------------------


IN_FILE = {"AGENT_SERVICES": "s.toml"}
TABLE = "AGENT_SERVICES=s.toml [services.tool]"


@pytest.mark.parametrize(
    ("environ", "command", "services", "where", "words"),
    [
        ({}, ("run", "{address:juge}"), (JUDGE,), "--", "the name of one: judge"),
        ({}, ("run", "{address:judge}"), (), "--", "none: this run starts no service"),
        ({"AGENT_PREPARE": "x {address:b}"}, None, (JUDGE,), "AGENT_PREPARE", "an unknown service"),
        ({"JUDGE": "http://{address:juge}/"}, None, (JUDGE,), "JUDGE", "{address:juge}"),
        (
            IN_FILE,
            None,
            (spec("tool", command="x {address:b}"),),
            f"{TABLE} command",
            "{address:b}",
        ),
        (IN_FILE, None, (spec("tool", A="{address:b}"),), f"{TABLE} env", "b"),
        ({}, ("{address:many}",), (spec("many", Where("workers")),), "--", "runs on the workers"),
        ({}, ("{address:reward}",), (replace(SERVER, argv=None),), "--", "an unknown service"),
    ],
)
def test_what_is_refused(
    environ: dict[str, str],
    command: tuple[str, ...] | None,
    services: tuple[ServiceSpec, ...],
    where: str,
    words: str,
) -> None:
    """An unknown service, one that runs elsewhere, and one on many nodes; with what has it."""
    own = {name: text for name, text in environ.items() if name.startswith("AGENT_")}
    found = address_problems(settings_of(own), command, services, ServicesFile(services), environ)
    (problem,) = found
    assert problem.variable == where
    assert words in problem.sentence()


def test_what_is_not_refused() -> None:
    """A format of another program, a shell's own expansion, and services that name each other."""
    two = (spec("a", command="x {address:b}"), spec("b", RANK_2, command="y {address:a}"))
    environ = {"LOG_FORMAT": "{address:15}"}
    command = ("sh", "-c", "echo ${address:1} {address:a} {address:b}")
    assert not [*address_problems(settings_of({}), command, two, ServicesFile(two), environ)]


# --- what waits for it ----------------------------------------------------------------------------


def of(*services: ServiceSpec, steps: tuple[PrepareStep, ...] = ()) -> HeadGoal:
    """Return the goal of a run with two workers."""
    named = ranked_and_named(services, (*services, *steps))
    made = replace(goal(2), services=services, steps=steps, addressed=named)
    return replace(made, max_prepare_seconds=1000.0)


def waits(trace: Trace) -> list[str]:
    """Return what the head holds back at its start."""
    return [action.sentence for action in trace.state.actions if isinstance(action, LogLine)]


DATA = PrepareStep("data", "curl {address:judge}", ON_HEAD, 60.0)


@pytest.mark.parametrize("name", ["tool", "data"])
def test_what_names_a_service_starts_once_its_node_has_reported(name: str) -> None:
    """Not once that service is ready: they may need each other."""
    trace = Trace(of(JUDGE, TOOL) if name == "tool" else of(JUDGE, steps=(DATA,)), [])
    assert waits(trace) == [f"{name} waits for the address of judge's node"]
    trace.take(nodes(2, 3), 1.0)
    trace.take(reported(2, rank=1, reported_at=1.1), 1.1)
    assert not [action for action in trace.effects if isinstance(action, Started)]
    trace.take(reported(3, rank=2, reported_at=2.0), 2.0)
    assert {Started(name, HERE), Started("judge", "agent3")} <= {*trace.effects}
    assert addresses_by_rank(trace.state) == {"judge": "10.0.0.3"}


def test_the_heads_own_rank_and_other_services_wait_for_nothing() -> None:
    """They are known from the start."""
    on_head = replace(JUDGE, where=Where("rank", 0))
    trace = Trace(of(on_head, TOOL), [])
    assert waits(trace) == []
    assert addresses_by_rank(trace.state) == {"judge": ""}
    assert of(EVERY, spec("x", command="{address:cache}")).addressed == frozenset()


def test_the_last_worker_of_a_rank_has_its_address() -> None:
    """A replaced node's address is not sent any more."""
    trace = Trace(of(JUDGE, TOOL), [(1.0, reported(3, rank=2, reported_at=1.0))])
    trace.take(reported(3, rank=2, reported_at=2.0, has_left=True), 2.0)
    trace.take(reported(4, rank=2, reported_at=3.0), 3.0)
    assert addresses_by_rank(trace.state) == {"judge": "10.0.0.4"}


def test_a_worker_keeps_the_addresses_that_it_was_sent() -> None:
    """A message without any changes none."""
    known = workers.replied()
    goal = w.WorkerGoal("pod0", workers.LIMITS, services=(TOOL,))
    trace = workers.WorkerTrace(goal, [(1.0, known)])
    addresses = {"judge": "10.0.0.3", "a": ""}
    start = NodeWanted("head1", 1, {"tool": Want()}, addresses)
    trace.take(replace(known, wanted=start), 2.0)
    trace.take(replace(known, wanted=NodeWanted("head1", 2)), 3.0)
    assert trace.state.addresses == {"judge": "10.0.0.3", "a": ""}
    assert worker.pending_waits(trace.state)


# --- the job --------------------------------------------------------------------------------------


def submission(*reports: h.HeadEvent, env: dict[str, str]) -> Submission | Outcome:
    """Return the submission of a command that names the judge, with these workers."""
    plan = plan_of({"RAY_WORKER": "0"}, command=["train", "--judge", "http://{address:judge}:8000"])
    plan = replace(plan, all_services=(JUDGE,))
    events = [(1.0, h.RaySeen((HEAD, *nodes(3).nodes))), *((2.0, one) for one in reports)]
    of_run = replace(of(JUDGE), limits=LIMITS)
    state = Trace(of_run, events).state
    place = with_addresses(
        Placeholders("10.0.0.1", "10.0.0.1", "0", "/logs"), (JUDGE,), addresses_by_rank(state)
    )
    maker = SubmissionMaker(plan, state, "run", JobBasis(), is_followed=False)
    return anyio.run(maker.make, place, "", env)


def test_the_jobs_command_and_environment() -> None:
    """Ray's actors get the variable by the runtime_env; others are left out of it."""
    env = {"JUDGE_URL": "http://{address:judge}:8000/v1", "OTHER": "{address:15}", "PLAIN": "x"}
    made = submission(reported(3, rank=2), env=env)
    assert isinstance(made, Submission)
    assert "--judge http://10.0.0.3:8000" in made.line
    assert made.runtime_env["env_vars"] == {"JUDGE_URL": "http://10.0.0.3:8000/v1"}


def test_a_job_without_the_node_is_not_submitted() -> None:
    """An optional service's node may be missing; its address then has no value."""
    made = submission(env={})
    assert isinstance(made, Outcome)
    assert made.exit_code == 69
    assert "the address of judge, on a node that has not reported" in made.reason
