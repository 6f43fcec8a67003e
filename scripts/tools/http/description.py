"""The agent's port as an OpenAPI description: paths, access, and what is answered."""

from __future__ import annotations

from typing import Any, NamedTuple

from agent.base.ends import Kind
from agent.checks.finding import Level
from agent.decisions.head.fleet import NodeState
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.receipt import PARTS
from agent.diagnosis.glance import SIGNS
from agent.job.services import JudgeCost, Latency
from agent.port.access import COOKIE
from agent.port.page_files import ASSETS
from agent.port.proof import PROOF_HEADER, SCHEME, SESSION_HEADER

Schema = dict[str, Any]

OPEN, TOKEN = "open", "with the token if one is set"
CONTROL = "with the token; without one on the node itself, with the key in its run folder"
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
NOTHING: Schema = {"type": "null"}


def one_of(values: Any) -> Schema:  # noqa: ANN401 - an enum
    """Return the schema of an enum's values."""
    return {"type": "string", "enum": [one.value for one in values]}


def nullable(schema: Schema) -> Schema:
    """Return a schema that null fits too."""
    return {"anyOf": [schema, NOTHING]}


def array(of: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": of}


def closed(*names: str, **fields: Schema) -> Schema:
    """Return the schema of an object that always has these fields, and no others.

    A field that is only named is a text.
    """
    fields = {**dict.fromkeys(names, TEXT), **fields}
    return {
        "type": "object",
        "properties": fields,
        "required": [*fields],
        "additionalProperties": False,
    }


def by_name(of: Schema) -> Schema:
    """Return the schema of an object with any names."""
    return {"type": "object", "additionalProperties": of}


SPANS = array(
    {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 2, "maxItems": 2}
)
"""Phases, each with the seconds since the agent's start at which it began."""
WAIT = closed("what", "evidence", seconds_left=NUMBER, following=FLAG)
STEP = closed("name", "state")
VERDICT = closed(
    *("reason", "phase", "culprit", "remedy"),
    kind=one_of(Kind),
    exit_code={"type": "integer", "minimum": 0, "maximum": 255},
    is_jobs_verdict=FLAG,
    attempts_are_used_up=FLAG,
    is_superseded=FLAG,
)
GPU_COLUMNS = {
    **dict.fromkeys(("index", "xid", "errors"), array(WHOLE)),
    **dict.fromkeys(("use", "memory_used", "memory_total"), array(nullable(WHOLE))),
    **dict.fromkeys(("power", "power_limit", "temperature", "clock"), array(nullable(WHOLE))),
    "throttled": array(array(TEXT)),
    "fault": array(TEXT),
}
FIGURES = closed(
    gpus={"type": "object", "properties": GPU_COLUMNS, "additionalProperties": False},
    gpu_fault=TEXT,
    host_memory_used=WHOLE,
    host_memory_total=WHOLE,
    disks=array({"type": "array", "items": {"type": ["string", "integer"]}, "minItems": 3}),
    network_received=NUMBER,
    network_sent=NUMBER,
    forecasts=array({"type": "array", "items": {"type": ["string", "number"]}, "minItems": 2}),
)
"""What a machine does: of its GPUs one list for each figure, in percent, MiB, W, MHz and degrees
Celsius; memory and disks (folder, used, total) in bytes; the network in bytes a second;
of what will be full soon its name and the seconds until then."""
NODE = closed(
    *("name", "ip", "phase", "detail", "last_error", "slow", "caches"),
    rank=nullable(WHOLE),
    state=one_of(NodeState),
    heard_seconds_ago=nullable(NUMBER),
    joined=FLAG,
    phases=SPANS,
    steps=array(STEP),
    figures=nullable(FIGURES),
)
GPU_HISTORY = closed(**dict.fromkeys(("seconds", "use", "lowest", "memory"), array(WHOLE)))
"""What the GPUs did at these seconds since the agent's start: medians of all in percent, and the
use of the node with the lowest one."""
SERVICE = closed(
    *("name", "state", "detail"),
    gpus=WHOLE,
    restarts=WHOLE,
    outages=WHOLE,
    outage_seconds=NUMBER,
    outage_since=nullable(NUMBER),
    latency=nullable(
        closed(
            last=NUMBER,
            total=NUMBER,
            counts={**array(WHOLE), "minItems": (n := len(Latency().counts)), "maxItems": n},
        )
    ),
    judge=nullable(closed(**dict.fromkeys(JudgeCost.__struct_fields__, WHOLE))),
)
OUTAGE = closed("service", "node", "from", to=nullable(TEXT))
ATTEMPT = closed("start", number=WHOLE, end=nullable(TEXT), reason=TEXT, exit_code=nullable(WHOLE))
JOB = closed("name", "status", attempt=WHOLE)
PROGRESS = closed(
    "last_step_at",
    attempt=WHOLE,
    step=WHOLE,
    of=nullable(WHOLE),
    highest=nullable(WHOLE),
    seconds_per_step=nullable(NUMBER),
    usual_seconds=nullable(NUMBER),
    seconds_since_step=NUMBER,
    is_pausing=FLAG,
    ends_at=nullable(TEXT),
    reward=nullable(NUMBER),
    reward_trend=nullable(NUMBER),
)
"""The job's steps, as its output or AGENT_PROGRESS_FILE has them."""
RECEIPT = closed(
    total=NUMBER,
    seconds=closed(**dict.fromkeys(PARTS, NUMBER)),
    away=NUMBER,
    has_steps=FLAG,
    cost=nullable(closed(**dict.fromkeys(PARTS, NUMBER))),
    wasted=NUMBER,
    cost_wasted=nullable(NUMBER),
    cost_per_step=nullable(NUMBER),
)
"""What the run's time was spent on, in seconds, and in dollars where the price is known."""
WARNING = closed("check", "what", "remedy")
STATE: Schema = {"type": "string", "enum": [*SIGNS]}
STALL = closed(
    *("what", "suspects", "log"),
    then={"type": "string", "enum": ["log", "retry", "stop"]},
    nodes=array(TEXT),
)
"""A job without progress; `log` is the log to read on the nodes of the suspects."""
CHECKPOINT = closed(step=WHOLE, at=nullable(TEXT))
GLANCE = closed(
    *("sentence", "details"),
    state=STATE,
    exceptions=array(closed("name", "state", "figure", "detail")),
    more_exceptions=WHOLE,
)
"""The judgment of the run: keep it, look at it, or consider ending it."""
SERIES = closed(
    keys=by_name(closed(steps=array(WHOLE), values=array(NUMBER))),
    meanings=by_name(TEXT),
    attempts=array(closed(number=WHOLE, first=WHOLE, after=nullable(WHOLE))),
    of=nullable(WHOLE),
    checkpoints=array({"type": "array", "minItems": 2, "maxItems": 2}),
)
"""The job's metrics by step; an attempt began at its first step, after the last one before.

`meanings` has the key of what people look at; a checkpoint is its step and its time."""
HEAD_FIELDS: Schema = {
    **dict.fromkeys(("run_id", "platform", "name", "slow"), TEXT),
    "role": {"const": "head"},
    "run_name": nullable(TEXT),
    "cost": nullable(NUMBER),
    "max_cost": nullable(NUMBER),
    "nodes_expected": WHOLE,
    "nodes_joined": WHOLE,
    "attempts_allowed": WHOLE,
    "loss_seconds_left": nullable(NUMBER),
    "stall": nullable(STALL),
    "advice": array(closed("what", "remedy", "meaning", state=STATE, is_reward_lost=FLAG)),
    "checkpoint": nullable(CHECKPOINT),
    "caches": nullable(closed("state", "detail")),
    "price": nullable(NUMBER),
    "price_source": nullable(TEXT),
    "receipt": RECEIPT,
    "epoch": WHOLE,
    "phase": one_of(HeadPhase),
    "at": TEXT,
    "seconds": NUMBER,
    "seconds_in_phase": NUMBER,
    "phases": SPANS,
    "waits": array(WAIT),
    "ray": closed("state", "detail"),
    "nodes": array(NODE),
    "more_refused": WHOLE,
    "services": array(SERVICE),
    "prepare": array(closed("name", "state", "detail")),
    "outages": array(OUTAGE),
    "job": nullable(JOB),
    "verdict": nullable(VERDICT),
    "attempts": array(ATTEMPT),
    "figures": nullable(FIGURES),
    "gpu_history": GPU_HISTORY,
    "progress": nullable(PROGRESS),
    "curves": SERIES,
}
WHAT_RUNS = closed("model", "data", "command", versions=by_name(TEXT))
PRIVATE_FIELDS: Schema = {
    "what_runs": WHAT_RUNS,
    "warnings": array(WARNING),
    "job_tail": array(TEXT),
    "metrics": by_name(NUMBER),
    "prepare_lines": by_name(by_name(TEXT)),
}
"""Fields that contain texts of logs: only callers with a token get them."""
WORKER = closed(
    *("platform", "name", "phase", "head_phase", "last_error"),
    role={"const": "worker"},
    rank=nullable(WHOLE),
    seconds=NUMBER,
    waits=array(WAIT),
    head=closed(host=nullable(TEXT), port=WHOLE),
    services=array(closed("name", "state", "detail")),
    verdict=nullable(VERDICT),
)
HEAD: Schema = {
    "type": "object",
    "properties": {**HEAD_FIELDS, **PRIVATE_FIELDS, "glance": GLANCE},
    "required": [*HEAD_FIELDS, "glance"],
    "additionalProperties": False,
}
CELL: Schema = {"type": "array", "minItems": 4, "maxItems": 4}
GPUS = closed(
    **dict.fromkeys(
        ("use", "lowest_use", "power", "memory_used", "memory_total"), nullable(NUMBER)
    ),
    lowest=nullable(TEXT),
)
_LONG = {"nodes", "figures", "slow", "phases", "ray", "epoch", "job_tail", "prepare_lines"}
BRIEF: Schema = {
    "type": "object",
    "properties": {
        **{name: field for name, field in HEAD["properties"].items() if name not in _LONG},
        "cells": array(CELL),
        "gpus": nullable(GPUS),
    },
    "required": ["glance", "cells", "gpus"],
    "additionalProperties": False,
}
"""The head's status as its page reads it: a node is its name, its state, the use of each GPU, and
whether it is slow."""
FOR_PAGE = ("query", "brief", TEXT)
OPTIONAL = {"after", "before", "brief"}
FINDING = closed("check", "what", "remedy", level=one_of(Level))
ROW = closed("check", "what", "remedy", level=one_of(Level), nodes=array(TEXT))
FINDINGS = closed(
    nodes=array(TEXT), unknown=array(TEXT), findings=array(ROW), between=array(FINDING)
)
PART = closed("text", next=nullable(WHOLE), over=FLAG, start=nullable(WHOLE))
OK = closed(ok=FLAG)
REPORT: Schema = {"type": "object", "required": ["id", "phase"]}
REPLY: Schema = {"type": "object", "required": ["protocol", "agent", "epoch", "run_id", "phase"]}
HTML = "text/html"


class Described(NamedTuple):
    """One path of the port."""

    method: str
    path: str
    content: str
    access: str
    kind: str = "application/json"
    """The type of the answer."""
    schema: Schema = TEXT
    """What is answered with 200."""
    others: tuple[int, ...] = ()
    """Further statuses, apart from those that every path or its access has."""
    head_only: bool = False
    takes: tuple[str, Schema] | None = None
    """Type and schema of the request's body."""
    parameters: tuple[tuple[str, str, Schema], ...] = ()
    """Place, name and schema of each parameter."""


NODE_AND_NAME = (("path", "node", TEXT), ("path", "name", TEXT))
SINCE = ("query", "since", {"type": "string", "pattern": "^[0-9]{1,15}$"})
AFTER = ("query", "after", {"type": "string", "pattern": "^[0-9]{1,15}$"})
BEFORE = ("query", "before", {"type": "string", "pattern": "^[0-9]{1,15}$"})
PATHS = (
    Described("get", "/livez", "liveness; `pod-agent status --live` asks it", OPEN, schema=OK),
    Described("get", "/readyz", "readiness: 200 or 503", OPEN, schema=OK, others=(503,)),
    Described(
        "get",
        "/status",
        "the status as JSON",
        TOKEN,
        schema={"anyOf": [HEAD, BRIEF, WORKER]},
        parameters=(FOR_PAGE,),
    ),
    Described("get", "/metrics", "the status for Prometheus", TOKEN, "text/plain"),
    Described("get", "/", "the page, or the form that asks for the token", TOKEN, HTML),
    *(
        Described("get", path, f"the page's {path.rpartition('.')[2]}", OPEN, kind)
        for path, kind in ASSETS.items()
    ),
    Described(
        *("post", "/login", "takes the form's token and sets the page's cookie", OPEN, HTML),
        others=(303, 401, 408, 413, 429, 503),
        takes=(
            "application/x-www-form-urlencoded",
            {"type": "object", "properties": {"token": TEXT}, "required": ["token"]},
        ),
    ),
    Described(
        *("get", "/events", "the status as server-sent events", CONTROL, "text/event-stream"),
        others=(503,),
        head_only=True,
    ),
    Described(
        *("get", "/logs/{node}/{name}", "a part of a log: its end, or what follows", CONTROL),
        schema=PART,
        others=(400, 404),
        head_only=True,
        parameters=(*NODE_AND_NAME, AFTER, BEFORE),
    ),
    Described(
        *("get", "/series", "the job's metrics by step, all or after a step", CONTROL),
        schema=SERIES,
        others=(400,),
        head_only=True,
        parameters=(SINCE,),
    ),
    Described(
        *("get", "/findings", "the findings of all nodes' checks", CONTROL),
        schema=FINDINGS,
        head_only=True,
    ),
    Described(
        *("post", "/stop", "ends the run as SIGTERM would", CONTROL),
        schema=closed(ok=FLAG, within=NUMBER),
        others=(408, 413, 503),
        head_only=True,
        takes=("application/json", {}),
    ),
    Described(
        *("post", "/report", "a worker's report; between agents of one version", TOKEN),
        schema=REPLY,
        others=(400, 408, 413, 503),
        head_only=True,
        takes=("application/json", REPORT),
    ),
    Described(
        *("get", "/sample", "some MB, by which a node measures the bandwidth to this one", TOKEN),
        kind="application/octet-stream",
        others=(409, 503),
        parameters=(("query", "run", TEXT),),
    ),
)
MEANINGS = {
    200: "as described",
    303: "to the page, with its cookie",
    400: "the request is wrong: the error names the field",
    401: f"no token, key or proof; `{SESSION_HEADER}` is the session to sign for",
    403: "a page of another site may not call",
    404: "no such path, node or log",
    408: "the body was not received in time",
    409: "not this node: no head, or another run",
    413: "the body is too large",
    415: "the Content-Type is another, or the body is compressed",
    421: "without a token: the Host header is no name of this node",
    429: "too many wrong tokens from this address: see Retry-After",
    503: "not now: see Retry-After",
}
ERROR = closed("error")


def description(version: str, report: Schema = REPORT) -> Schema:
    """Return the description; `report` is the schema of a report's body."""
    found: dict[str, Schema] = {}
    for row in PATHS:
        found.setdefault(row.path, {})[row.method] = _operation(row, report)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pod-agent: the agent's port",
            "version": version,
            "description": "Made by ./scripts/http from scripts/tools/http/description.py.",
        },
        "paths": found,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "page": {"type": "apiKey", "in": "cookie", "name": f"{COOKIE}_8266"},
                "proof": {
                    "type": "http",
                    "scheme": SCHEME,
                    "description": f"docs/security.md; the reply has `{PROOF_HEADER}`",
                },
            }
        },
    }


def statuses(row: Described) -> list[int]:
    """Return every status that a path answers with."""
    found = {200, *row.others}
    if row.access != OPEN:
        found |= {401} if row.kind == HTML else {401, 429}
    if row.head_only:
        found.add(409)
    if row.path not in {"/livez", "/readyz"}:
        found |= {403, 415, 421}
    return sorted(found)


def _operation(row: Described, report: Schema) -> Schema:
    is_open = row.access == OPEN
    made: Schema = {
        "summary": row.content,
        "responses": {str(code): _response(row, code) for code in statuses(row)},
        "security": [] if is_open else _security(row.method),
    }
    if row.parameters:
        made["parameters"] = [
            {"in": place, "name": name, "required": name not in OPTIONAL, "schema": schema}
            for place, name, schema in row.parameters
        ]
    if row.takes is not None:
        kind, schema = row.takes
        schema = report if schema is REPORT else schema
        made["requestBody"] = {"required": True, "content": {kind: {"schema": schema}}}
    return made


def _security(method: str) -> list[Schema]:
    """Return the credentials that open a path: the page's cookie only reads."""
    page: list[Schema] = [{"page": []}] if method == "get" else []
    return [{"token": []}, *page, {"proof": []}]


def _response(row: Described, code: int) -> Schema:
    made: Schema = {"description": MEANINGS[code]}
    if code == 303:
        return made
    is_page = row.kind == HTML and code in {401, 429}
    if code == 200 or is_page or row.path == "/readyz":
        kind, schema = row.kind, row.schema
    else:
        kind, schema = "application/json", ERROR
    return {**made, "content": {kind: {"schema": schema}}}
