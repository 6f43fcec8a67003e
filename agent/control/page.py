"""The page, the login form and the metrics, from the same status that `/status` serves."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Any

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #8884}
h1{font-size:1.3rem}h2{font-size:1rem;margin:1.5rem 0 0}
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}}
"""
POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'"
    "; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""What a browser may do with a page of ours: use its style sheet and post its form, no more."""


def overview(status: dict[str, Any]) -> str:
    """Render a status as a page."""
    job = status.get("job") or {}
    rows = [
        ("run", status.get("run_id")),
        ("role", status.get("role")),
        ("phase", status.get("phase")),
        ("job", f"{job.get('name', 'none')}: {job.get('status', 'not submitted')}"),
        ("verdict", (status.get("verdict") or {}).get("reason", "")),
    ]
    parts = [
        "<h1>pod-agent</h1>",
        _table(("", ""), rows),
        "<h2>waiting for</h2>",
        _table(("what", "last heard"), [(w["what"], w["evidence"]) for w in status["waits"]]),
    ]
    if status.get("role") == "head":
        nodes = [
            (n["name"], n["ip"], "" if n["rank"] is None else n["rank"], n["phase"], n["detail"])
            for n in status["nodes"]
        ]
        services = [(s["name"], s["state"], s["detail"]) for s in status["services"]]
        parts += [
            "<h2>nodes</h2>",
            _table(("name", "address", "rank", "phase", "last word"), nodes),
            "<h2>services</h2>",
            _table(("name", "state", "last word"), services),
        ]
    return _page("pod-agent", "".join(parts), refresh=True)


def login(*, wrong: bool = False) -> str:
    """Render the form that asks for the token."""
    note = "<p>That is not the token of this cluster.</p>" if wrong else ""
    return _page(
        "pod-agent: token",
        f'<h1>pod-agent</h1>{note}<form method="post" action="/login">'
        '<label>RAY_AUTH_TOKEN <input type="password" name="token" autofocus></label> '
        "<button>Enter</button></form>",
        refresh=False,
    )


def metrics(status: dict[str, Any]) -> str:
    """Render a status for Prometheus."""
    nodes = status.get("nodes") or []
    lines = [
        "# HELP pod_agent_phase The phase of this node's agent; 1 for the current one.",
        "# TYPE pod_agent_phase gauge",
        f'pod_agent_phase{{role="{status["role"]}",phase="{_label(status["phase"])}"}} 1',
        "# HELP pod_agent_workers Workers by whether they count as joined.",
        "# TYPE pod_agent_workers gauge",
        f'pod_agent_workers{{joined="true"}} {sum(1 for n in nodes if n["joined"])}',
        f'pod_agent_workers{{joined="false"}} {sum(1 for n in nodes if not n["joined"])}',
        "# HELP pod_agent_waits Things waited for.",
        "# TYPE pod_agent_waits gauge",
        f"pod_agent_waits {len(status['waits'])}",
    ]
    return "\n".join(lines) + "\n"


def _label(text: object) -> str:
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    if not rows:
        return "<p>nothing</p>"
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"


def _page(title: str, body: str, *, refresh: bool) -> str:
    again = '<meta http-equiv="refresh" content="3">' if refresh else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{again}'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>"
    )
