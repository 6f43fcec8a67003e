"""`status`: ask this node's agent, and through it the head's, and show the answer."""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from agent.base.ports import port_map
from agent.settings import load
from agent.topology.platforms import port_base

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.ports import PortBase
    from agent.settings import Settings

_LIMIT = 5.0
_EVERY = 2.0
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def show(environ: Mapping[str, str], *, as_json: bool, watch: bool) -> int:
    """Print the head's status; 69 if no head answers."""
    settings = load(environ).settings
    while True:
        status, evidence = _of_the_head(settings, port_base(environ, settings))
        if status is None:
            print(f"pod-agent: no head's agent answers: {evidence}", file=sys.stderr)
            return 69
        print(json.dumps(status, indent=2) if as_json else as_text(status), flush=True)
        if not watch:
            return 0
        time.sleep(_EVERY)  # a person watches; nothing waits on this


def is_live(environ: Mapping[str, str]) -> int:
    """Ask this node's own agent whether it lives, as a container's health check does; else 69."""
    settings = load(environ).settings
    where = f"127.0.0.1:{_own_port(settings, port_base(environ, settings))}"
    try:
        with _NO_PROXY.open(f"http://{where}/livez", timeout=_LIMIT):
            return 0
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", error) or type(error).__name__
        print(f"pod-agent: no agent lives here: {where}: {why}", file=sys.stderr)
        return 69


def _own_port(settings: Settings, base: PortBase) -> int:
    return port_map(settings.ray_port, settings.dashboard_port, settings.port, base).agent


def _of_the_head(settings: Settings, base: PortBase) -> tuple[dict[str, Any] | None, str]:
    """Ask the agent of this node first: an ssh shell has no variables that name the head."""
    port = _own_port(settings, base)
    local, evidence = _ask("127.0.0.1", port, settings)
    if local is not None and local.get("role") == "head":
        return local, ""
    if local is not None:
        host, port = str(local["head"]["host"]), int(local["head"]["port"])
    elif settings.head is not None:
        host = settings.head
    elif settings.head_pod_id is not None:
        host = f"{settings.head_pod_id}.runpod.internal"
    else:
        return None, f"{evidence}; set AGENT_HEAD or HEAD_POD_ID to ask from elsewhere"
    return _ask(host, port, settings)


def _ask(host: str, port: int, settings: Settings) -> tuple[dict[str, Any] | None, str]:
    where = f"{f'[{host}]' if ':' in host else host}:{port}"
    request = urllib.request.Request(f"http://{where}/status")
    # whatever name led there, the node need not know it: only browsers are held to their Host
    request.add_header("Host", "localhost")
    if settings.ray_auth_token is not None:
        token = settings.ray_auth_token.reveal()
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with _NO_PROXY.open(request, timeout=_LIMIT) as reply:
            data = json.load(reply)
    except urllib.error.HTTPError as error:
        wrong = "it asks for the cluster's RAY_AUTH_TOKEN" if error.code == 401 else str(error)
        return None, f"{where}: {wrong}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return None, f"{where}: {getattr(error, 'reason', error) or type(error).__name__}"
    if isinstance(data, dict) and {"role", "phase", "waits"} <= data.keys():
        return data, ""
    return None, f"{where}: whatever listens there is no agent"


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
