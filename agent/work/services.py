"""What runs beside the job: services as values to be planned, shown and run."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from agent.base.own_command import own_command
from agent.base.value import dataclass
from agent.settings.jobs import DIALECT, known_job
from agent.settings.rules import is_url, wants_reward_url
from agent.work.prepare import PREPARE, PREPARE_EACH, by_order
from agent.work.where import NODE_IP, ON_HEAD, Place, Where

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.settings import Settings
    from agent.work.prepare import PrepareStep

REWARD = "reward server"
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Scores:
    """Ready once it answers a real scoring request with one finite number."""

    url: str

    def sentence(self, place: Place) -> str:
        """Say when it counts as ready."""
        return f"ready when POST {place.fill(self.url)} answers a scoring request"


@dataclass(frozen=True)
class Replies:
    """Ready once a request is answered with 2xx and, in the reply, what is expected."""

    url: str
    body: str | None = None
    """Posted as JSON; without one the request is a GET."""
    expect: str = ""

    def sentence(self, place: Place) -> str:
        """Say when it counts as ready."""
        method = "GET" if self.body is None else "POST"
        what = f" with {self.expect!r} in it" if self.expect else ""
        return f"ready when {method} {place.fill(self.url)} answers 2xx{what}"


@dataclass(frozen=True)
class Listens:
    """Ready once a TCP connection stands."""

    port: int

    def sentence(self, _place: Place) -> str:
        """Say when it counts as ready."""
        return f"ready when port {self.port} takes connections"


@dataclass(frozen=True)
class Logs:
    """Ready once a line of its output matches."""

    pattern: str

    def sentence(self, _place: Place) -> str:
        """Say when it counts as ready."""
        return f"ready when its output matches {self.pattern!r}"


Readiness = Scores | Replies | Listens | Logs


@dataclass(frozen=True)
class Alive:
    """How a service that was ready is asked again while the job runs."""

    every: float = 10.0
    within: float = 60.0
    misses: int = 3


@dataclass(frozen=True)
class ServiceSpec:
    """One service: how it is started and where, when it is ready, what its death means."""

    name: str
    asked: str
    """What the user asked for, in his own words: equal on all nodes of a run."""
    argv: tuple[str, ...] | None
    """Its command, with placeholders; None where others run it and it is only probed."""
    ready: Readiness
    within: float
    """Longest from the start to its readiness."""
    deadline_variable: str
    where: Where = ON_HEAD
    restarts: int = 3
    restarted_within: float = 120.0
    """Longest for a restarted one to answer again."""
    essential: bool = True
    env: tuple[tuple[str, str], ...] = ()
    port: int | None = None
    bind: str = ""
    """Where it listens, for a person."""
    url: str = ""
    """What jobs are told of it, where it is what scores."""
    alone: bool = False
    """True where its node is there for it only: it joins no Ray and is no worker."""
    alive: Alive | None = None
    after: tuple[str, ...] = ()
    """The steps and services that must be done or ready before it starts."""

    @property
    def asked_again(self) -> Alive | None:
        """Return how it is asked while the job runs; a line of its output cannot be asked for."""
        return None if isinstance(self.ready, Logs) else self.alive or Alive()

    @property
    def log(self) -> str:
        """Return the name of the file that holds its output."""
        return f"{self.name.replace(' ', '-')}.log"

    def command(self, place: Place) -> list[str]:
        """Return its argv on a node; only where it is ours to run."""
        assert self.argv is not None  # noqa: S101 - asked only where there is one
        return [place.fill(word) for word in self.argv]

    def environment(self, place: Place) -> dict[str, str]:
        """Return the variables that it gets beside its node's."""
        return {name: place.fill(text) for name, text in self.env}


def reward_service(
    settings: Settings, command: tuple[str, ...] | None, python: str = sys.executable
) -> ServiceSpec | None:
    """Return the reward server that this run needs, or None; `python` runs the bundled one."""
    wish = settings.reward or ("builtin" if wants_reward_url(settings, command) else "off")
    port, path = settings.reward_port, settings.reward_path
    url = f"http://{NODE_IP}:{port}{path}"
    within, variable = settings.wait_reward, "AGENT_WAIT_REWARD"
    if wish == "off":
        return None
    if is_url(wish):
        return ServiceSpec(REWARD, wish, None, Scores(wish), within, variable, url=wish)
    if wish == "builtin":
        flags = ["--host", f"{NODE_IP},{_LOOPBACK}", "--port", str(port), "--path", path]
        job = known_job(settings, command)
        if job is not None and job.dialect != DIALECT:
            flags += ["--dialect", job.dialect]
        argv = own_command(python, "reward-server", *flags)
        bind = f"{NODE_IP} and {_LOOPBACK}"
        return ServiceSpec(
            REWARD, wish, tuple(argv), Scores(url), within, variable, port=port, bind=bind, url=url
        )
    return ServiceSpec(
        REWARD,
        wish,
        ("/bin/sh", "-c", wish),
        Scores(url),
        within,
        variable,
        env=(("AGENT_REWARD_PORT", str(port)), ("AGENT_REWARD_PATH", path)),
        port=port,
        bind="as its command says",
        url=url,
        after=(PREPARE_EACH, PREPARE),  # the data that it reads
    )


def reward_url(services: Iterable[ServiceSpec], place: Place) -> str:
    """Return the URL that jobs are given for their rewards; '' where nothing scores.

    The place is that of the node on which the reward server lives.
    """
    return next((place.fill(spec.url) for spec in services if spec.url), "")


def digest(services: Iterable[ServiceSpec], steps: Iterable[PrepareStep] = ()) -> str:
    """Return what must be equal on nodes that run each other's services and steps by order.

    What runs on the head alone is the head's affair. Paths of programs differ between nodes: what
    was asked for counts.
    """
    rows = [{**asdict(spec), "argv": None} for spec in services if spec.where.kind != ON_HEAD.kind]
    rows += [asdict(step) for step in by_order(steps)]
    text = json.dumps(rows, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
