"""Finds the head's agent of a run, from any node or shell, and asks it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import ValidationError

from agent.base.errors import UnavailableError
from agent.base.ports import port_map
from agent.base.text import escaped, in_url, is_loopback, map_texts, nearly_equal
from agent.base.typed import convert
from agent.base.value import Value
from agent.cli.http_request import ask
from agent.plan.plan import log_root
from agent.platforms.resolve import port_base
from agent.port.status_model import HeadAddress, JudgedStatus
from agent.record import run_keys
from agent.settings import load
from agent.settings.model import SECRET_FILE_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.settings.model import Settings

T = TypeVar("T")
HEAD = "head"


class NamedNode(Value):
    """A node of a head's status."""

    name: str


class Agent(Value):
    """What the agents of all versions say of themselves."""

    role: str
    phase: str
    waits: list[object]
    run_id: str = ""
    nodes: tuple[NamedNode, ...] = ()
    head: HeadAddress | None = None  # of a worker


class AgentAnswer(NamedTuple):
    """What an agent answers: its JSON, and what every version has of it."""

    data: dict[str, Any]
    agent: Agent


class Received(NamedTuple):
    """A status, and as it was sent."""

    status: JudgedStatus
    data: dict[str, Any]


class RunningHead(NamedTuple):
    """A head's answer, its host and port, and this node's settings."""

    data: dict[str, Any]  # its status as it was sent
    agent: Agent
    where: str
    settings: Settings

    @property
    def status(self) -> JudgedStatus:
        """Return its status; raises for that of another version."""
        return read_answer(self.data, JudgedStatus)

    def secret(self) -> str | None:
        """Return the token, else the key in the folder of the head's run.

        An agent that is restarted makes another key.
        """
        token = self.settings.ray_auth_token
        if token is not None:
            return token.reveal()
        return run_keys.newest_key(log_root(self.settings), self.agent.run_id)

    def ask(
        self, path: str, kind: type[T], *, post: bool = False, clean: Callable[[str], str] = str
    ) -> T:
        """Return the answer to a request that needs the token or key; raises if refused."""
        answer = ask(f"http://{self.where}{path}", self.secret(), post=post)
        why = answer.failure
        with suppress(ValueError, RecursionError):
            data = json.loads(answer.body)
            if answer.status == 200:
                return read_answer(map_texts(data, clean), kind)
            if isinstance(data, dict):
                why = escaped(str(data.get("error", why)))
        raise UnavailableError(f"{self.where}: {why}")


_READ = {
    *("AGENT_HEAD", "HEAD_POD_ID", "RAY_WORKER", "EXPECTED_WORKERS", "AGENT_LOG_DIR"),
    *("AGENT_PORT", "AGENT_RAY_PORT", "AGENT_DASHBOARD_PORT", "RAY_AUTH_TOKEN"),
}
"""Variables that show where a head and its run's folder are: those of its job do not matter."""


def reader_settings(environ: Mapping[str, str]) -> Settings:
    """Return the settings of a verb that only asks.

    AGENT_HEAD=127.0.0.1 stands for the end of `ssh -L` here, which is asked in any case; a run
    refuses it.
    """
    known = {*_READ, *(form for form, name in SECRET_FILE_VARIABLES.items() if name in _READ)}
    given = {
        name: text
        for name, text in environ.items()
        if any(nearly_equal(name, own) for own in known)  # a misspelled one is refused
    }
    if is_loopback(given.get("AGENT_HEAD", "").strip()):
        del given["AGENT_HEAD"]
    return load(given).settings


def require_head(environ: Mapping[str, str]) -> RunningHead:
    """Return the head and its status; raises if none answers."""
    head = find_head(environ)
    if isinstance(head, str):
        raise UnavailableError(f"no head's agent answers: {head}")
    return head


def find_head(environ: Mapping[str, str]) -> RunningHead | str:
    """Return the head and its status, or why none answers; raises if it asks for the token."""
    settings = reader_settings(environ)
    port = own_port(environ, settings)

    # Is it this node's agent? An ssh shell lacks the variables that name the head.
    where = f"127.0.0.1:{port}"
    local = status_at(where, settings)
    if isinstance(local, AgentAnswer) and local.agent.role == HEAD:
        return RunningHead(*local, where, settings)

    # Who names the head: this node's agent, or the variables?
    named = None if isinstance(local, str) else local.agent.head
    if named is not None:
        where = f"{in_url(str(named.host))}:{named.port}"
    elif settings.head is not None:
        where = f"{in_url(settings.head)}:{port}"
    elif settings.head_pod_id is not None:
        where = f"{settings.head_pod_id}.runpod.internal:{port}"
    else:
        why = local if isinstance(local, str) else f"{where} names no head"
        return f"{why}; set AGENT_HEAD or HEAD_POD_ID to ask from elsewhere"

    answer = status_at(where, settings)
    if isinstance(answer, str):
        return answer
    if answer.agent.role != HEAD:
        return f"{where}: the agent there is a {answer.agent.role}'s, not the head's"
    return RunningHead(*answer, where, settings)


def own_port(environ: Mapping[str, str], settings: Settings) -> int:
    """Return the port of this node's agent, which is also the head's."""
    base = port_base(environ, settings)
    return port_map(settings.ray_port, settings.dashboard_port, settings.port, base).agent


def status_at(where: str, settings: Settings) -> AgentAnswer | str:
    """Return the status of the agent at a host and port, or why there is none."""
    token = settings.ray_auth_token
    answer = ask(f"http://{where}/status", None if token is None else token.reveal())
    if answer.status == 401:
        raise UnavailableError(f"{where}: it asks for the cluster's RAY_AUTH_TOKEN")
    if answer.status != 200:
        return f"{where}: {answer.failure}"
    with suppress(ValueError, RecursionError, ValidationError):
        data = map_texts(json.loads(answer.body), escaped)
        return AgentAnswer(data, convert(data, Agent))
    return f"{where}: whatever listens there is no agent"


def read_answer(data: object, kind: type[T]) -> T:
    """Read an agent's answer; raises for that of another version, as an error of the user."""
    try:
        return convert(data, kind)
    except ValidationError as error:
        raise UnavailableError("an agent of another version answers: try --json") from error
