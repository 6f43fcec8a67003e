"""`status`: ask this node's agent, and through it the head's, and show the answer."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.base.addresses import in_url
from agent.base.ports import port_map
from agent.base.words import all_escaped
from agent.control.http import ask
from agent.settings import load
from agent.topology.platforms import port_base

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.ports import PortBase
    from agent.settings import Settings

STRANGE = (KeyError, TypeError, ValueError, AttributeError)
"""What comes of a status that no agent of this version tells."""
OF_ANOTHER_VERSION = "pod-agent: an agent of another version answers: try --json"
_NO_AGENT = "whatever listens there is no agent"


def show(environ: Mapping[str, str], *, as_json: bool) -> int:
    """Print the head's status; 69 if no head answers."""
    found = find_head(environ)
    if found is None:
        return 69
    status = found.status
    try:
        text = json.dumps(status) if as_json else as_text(status)
    except STRANGE:
        print(OF_ANOTHER_VERSION, file=sys.stderr)
        return 69
    print(text, flush=True)
    return 0


def is_live(environ: Mapping[str, str]) -> int:
    """Ask this node's own agent whether it lives, as a container's health check does; else 69."""
    settings = load(environ).settings
    where = f"127.0.0.1:{_own_port(settings, port_base(environ, settings))}"
    answer = ask(f"http://{where}/livez")
    if answer.status == 200:
        return 0
    why = answer.evidence or f"it answered {answer.status}"
    print(f"pod-agent: no agent lives here: {where}: {why}", file=sys.stderr)
    return 69


class FoundHead(NamedTuple):
    """A head that answers: its status, its host and port, and this node's settings."""

    status: dict[str, Any]
    where: str
    settings: Settings


def find_head(environ: Mapping[str, str]) -> FoundHead | None:
    """Ask the head for its status; None where none answers, which a person is told."""
    settings = load(environ).settings
    status, evidence, where = _head_of(settings, _own_port(settings, port_base(environ, settings)))
    if status is None:
        print(f"pod-agent: no head's agent answers: {evidence}", file=sys.stderr)
        return None
    return FoundHead(status, where, settings)


def _own_port(settings: Settings, base: PortBase) -> int:
    """Return the port of this node's agent, which is also the head's."""
    return port_map(settings.ray_port, settings.dashboard_port, settings.port, base).agent


def _head_of(settings: Settings, port: int) -> tuple[dict[str, Any] | None, str, str]:
    """Return the head's status, or None and why; and the host and port that were asked.

    The agent of this node is asked first: an ssh shell has no variables that name the head.
    """
    where = f"127.0.0.1:{port}"
    local, evidence = status_at(where, settings)
    if local is not None and local["role"] == "head":
        return local, "", where
    if local is not None:
        named = local.get("head")
        if not isinstance(named, dict) or not {"host", "port"} <= named.keys():
            return None, f"{where}: {_NO_AGENT}", where
        where = f"{in_url(str(named['host']))}:{named['port']}"
    elif settings.head is not None:
        where = f"{in_url(settings.head)}:{port}"
    elif settings.head_pod_id is not None:
        where = f"{settings.head_pod_id}.runpod.internal:{port}"
    else:
        return None, f"{evidence}; set AGENT_HEAD or HEAD_POD_ID to ask from elsewhere", where
    found, evidence = status_at(where, settings)
    if found is not None and found["role"] != "head":
        return None, f"{where}: the agent there is a {found['role']}'s, not the head's", where
    return found, evidence, where


def status_at(where: str, settings: Settings) -> tuple[dict[str, Any] | None, str]:
    """Return the status of the agent at a host and port, or None and why."""
    token = settings.ray_auth_token
    answer = ask(f"http://{where}/status", None if token is None else token.reveal())
    if answer.status == 401:
        return None, f"{where}: it asks for the cluster's RAY_AUTH_TOKEN"
    if answer.status != 200:
        return None, f"{where}: {answer.evidence or f'it answered {answer.status}'}"
    try:
        data = all_escaped(json.loads(answer.body))
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict) and {"role", "phase", "waits"} <= data.keys():
        return data, ""
    return None, f"{where}: {_NO_AGENT}"


def as_text(status: Mapping[str, Any]) -> str:
    """Render a status for a person."""
    job = status.get("job") or {"name": "none", "status": "none"}
    lines = [
        (
            f"run {status.get('run_id')}, {status['phase']} for {status['seconds_in_phase']:.0f} s "
            f"({status['seconds']:.0f} s since the start)"
        ),
        f"job {job['name']}: {job['status']}",
    ]
    lines += [
        f"waiting for {w['what']}: {w['evidence'] or 'no word'} ({w['seconds_left']:.0f} s left)"
        for w in status["waits"]
    ]
    for service in status["services"]:
        detail = f" ({service['detail']})" if service["detail"] else ""
        lines.append(f"{service['name']}: {service['state']}{detail}")
    for node in status["nodes"]:
        rank = "" if node["rank"] is None else f" rank {node['rank']}"
        error = f"; last error: {node['last_error']}" if node["last_error"] else ""
        lines.append(f"worker {node['name']}{rank} ({node['ip']}): {node['phase']}{error}")
    verdict = status.get("verdict")
    if verdict:
        lines.append(f"verdict: {verdict['kind']}: {verdict['reason']}")
    return "\n".join(lines)
