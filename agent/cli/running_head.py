"""Finds the head's agent of a run, from any node or shell, and asks it."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.base.errors import UnavailableError
from agent.base.ports import port_map
from agent.base.text import escaped, in_url, is_loopback, map_texts, nearly_equal
from agent.cli.http_request import ask
from agent.plan.plan import log_root
from agent.platforms.resolve import port_base
from agent.record import run_folder
from agent.settings import load
from agent.settings.model import SECRET_FILE_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.settings.model import Settings

HEAD = "head"


class RunningHead(NamedTuple):
    """A head's status, its host and port, and this node's settings."""

    status: dict[str, Any]
    where: str
    settings: Settings

    def secret(self) -> str | None:
        """Return the token, else the key in the folder of the head's run.

        An agent that is restarted makes another key.
        """
        token = self.settings.ray_auth_token
        if token is not None:
            return token.reveal()
        run_id = str(self.status.get("run_id") or "")
        return run_folder.newest_key(log_root(self.settings), run_id)

    def ask(self, path: str, *, post: bool = False) -> Any:  # noqa: ANN401 - any JSON
        """Return the JSON answer to a request that needs the token or key; raises if refused."""
        answer = ask(f"http://{self.where}{path}", self.secret(), post=post)
        why = answer.failure
        with suppress(ValueError, RecursionError):
            data = json.loads(answer.body)
            if answer.status == 200:
                return data
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
    if isinstance(local, dict) and local["role"] == HEAD:
        return RunningHead(local, where, settings)

    # Who names the head: this node's agent, or the variables?
    named = local.get("head") if isinstance(local, dict) else None
    if isinstance(named, dict):
        where = f"{in_url(str(named.get('host')))}:{named.get('port')}"
    elif settings.head is not None:
        where = f"{in_url(settings.head)}:{port}"
    elif settings.head_pod_id is not None:
        where = f"{settings.head_pod_id}.runpod.internal:{port}"
    else:
        why = local if isinstance(local, str) else f"{where} names no head"
        return f"{why}; set AGENT_HEAD or HEAD_POD_ID to ask from elsewhere"

    status = status_at(where, settings)
    if isinstance(status, str):
        return status
    if status["role"] != HEAD:
        return f"{where}: the agent there is a {status['role']}'s, not the head's"
    return RunningHead(status, where, settings)


def own_port(environ: Mapping[str, str], settings: Settings) -> int:
    """Return the port of this node's agent, which is also the head's."""
    base = port_base(environ, settings)
    return port_map(settings.ray_port, settings.dashboard_port, settings.port, base).agent


def status_at(where: str, settings: Settings) -> dict[str, Any] | str:
    """Return the status of the agent at a host and port, or why there is none."""
    token = settings.ray_auth_token
    answer = ask(f"http://{where}/status", None if token is None else token.reveal())
    if answer.status == 401:
        raise UnavailableError(f"{where}: it asks for the cluster's RAY_AUTH_TOKEN")
    if answer.status != 200:
        return f"{where}: {answer.failure}"
    with suppress(ValueError, RecursionError):
        data = map_texts(json.loads(answer.body), escaped)
        if isinstance(data, dict) and {"role", "phase", "waits"} <= data.keys():
            return data
    return f"{where}: whatever listens there is no agent"


@contextmanager
def in_known_format() -> Iterator[None]:
    """Report data of another version's agent as an error of the user."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnavailableError("an agent of another version answers: try --json") from error
