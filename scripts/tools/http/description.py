"""The agent's port as an OpenAPI description: paths, access, and what is answered."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.json import schema_components

from agent.job.series import SeriesPart
from agent.port.access import COOKIE
from agent.port.page_files import ASSETS
from agent.port.proof import PROOF_HEADER, SCHEME, SESSION_HEADER
from agent.port.status_model import (
    FindingsStatus,
    GpuColumns,
    JudgedStatus,
    LogPart,
    PageStatus,
    StopAnswer,
    WorkerStatus,
)

Schema = dict[str, Any]

OPEN, TOKEN = "open", "with the token if one is set"
CONTROL = "with the token; without one on the node itself, with the key in its run folder"
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}


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


REFERENCE = "#/components/schemas/{name}"
(HEAD, PAGE, WORKER, SERIES, FINDINGS, PART, STOPPED), COMPONENTS = schema_components(
    [
        *(JudgedStatus, PageStatus, WorkerStatus),
        *(SeriesPart, FindingsStatus, LogPart, StopAnswer),
    ],
    ref_template=REFERENCE,
)
"""What the port answers, as agent/port/status_model.py declares it."""


def closed_components() -> dict[str, Schema]:
    """Return the schemas of these types: each field is sent, apart from those that are unset."""
    found = {}
    for name, schema in COMPONENTS.items():
        fields = schema.get("properties", {})
        sent = [field for field in fields if "default" in fields[field]]
        if name == GpuColumns.__name__:  # it has none without GPUs
            sent = []
        required = {*schema.get("required", ()), *sent}
        found[name] = schema
        if fields:
            ordered = [field for field in fields if field in required]
            found[name] = {**schema, "required": ordered, "additionalProperties": False}
    return found


FOR_PAGE = ("query", "brief", TEXT)
OPTIONAL = {"after", "before", "brief"}
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
        schema={"anyOf": [HEAD, PAGE, WORKER]},
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
        schema=STOPPED,
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
            "description": "Made by ./scripts/http from agent/port/status_model.py and the paths.",
        },
        "paths": found,
        "components": {
            "schemas": closed_components(),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "page": {"type": "apiKey", "in": "cookie", "name": f"{COOKIE}_8266"},
                "proof": {
                    "type": "http",
                    "scheme": SCHEME,
                    "description": f"docs/security.md; the reply has `{PROOF_HEADER}`",
                },
            },
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
