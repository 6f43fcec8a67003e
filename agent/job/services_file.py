"""Reads the TOML file of AGENT_SERVICES: services, prepare steps and groups of nodes.

The problems of all tables are collected, each with file, table and key.
"""

from __future__ import annotations

import json
import math
import re
from graphlib import CycleError, TopologicalSorter
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypedDict,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import urlsplit

from msgspec import Meta, ValidationError
from msgspec.structs import replace

from agent.base.errors import Problem
from agent.base.ports import DEFAULTS
from agent.base.text import is_loopback, parse_toml
from agent.base.typed import convert
from agent.job.groups import Lost, NodeGroup
from agent.job.services import (
    BY_COMMAND,
    FRONTED,
    GIVEN_PORT,
    NAMES_IN_AFTER,
    NO_FILE,
    NODE_PLACEHOLDERS,
    ON_HEAD,
    REWARD,
    SHELL,
    HttpProbe,
    LivenessCheck,
    LogPattern,
    Placeholders,
    PrepareStep,
    ServicesFile,
    ServiceSpec,
    TcpProbe,
    Weights,
    Where,
)
from agent.node.facts import CUDA, HIP, ROCR
from agent.settings.rules import JUDGE, TRAINER
from agent.settings.values import duration

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent.settings.model import Settings


Table = dict[str, Any]
Fields = dict[str, Any]
"""The values that a table sets, by the name of their field."""

REWARD_ROW = "reward"  # The table that replaces AGENT_REWARD
_VARIABLE = "AGENT_SERVICES"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_RESERVED_NAMES = frozenset(
    {
        *("agent", "ray", "job", "ray-start", "ray-bridge", "ray-job"),
        *("prepare", "prepare-each", "reward-server", "model", "cache-dir", "compile-caches"),
        *("head", "workers", "submit", "join", "stop"),
    }
)
"""Names of the agent's logs and waits."""
_ONE_PROBE = "one of http, tcp and log"
_PLACES: tuple[Literal["head", "every", "workers"], ...] = ("head", "every", "workers")
_IN_A_GROUP = "a service in a group: its `where` names one"
_RESTARTS_OF_MEMBER = 10
"""Within the time after which they are forgotten: the trainer goes on without a member."""
_PORTS_OF_SERVICE = 64
"""The ports that `{port}` is: of the first service these and the next 63, and so on. A platform
whose jobs share hosts has others.
"""


# --- the keys of the tables -----------------------------------------------------------------------

_Text = Annotated[str, Meta(pattern=r"\A[^\0]*[^\0\s][^\0]*\Z")]  # Not blank
_Duration = str | int | float
_Number = Annotated[int, Meta(ge=0, le=1000)]


class _File(TypedDict, total=False):
    services: dict[str, Table]
    prepare: dict[str, Table]
    groups: dict[str, Table]


class _Group(TypedDict, total=False):
    nodes: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)] | Annotated[str, Meta(pattern="^[1-9]/[2-9]$")],
        Meta(description='a number from 1 on, or a part of all nodes, as "1/2"'),
    ]
    ray: bool
    min: Annotated[int, Meta(ge=1, le=100_000)]
    lost: Lost


class _Ready(TypedDict, total=False):
    http: _Text
    tcp: Annotated[int, Meta(ge=1, le=65_535)] | str
    log: _Text
    body: _Text
    expect: _Text
    within: _Duration


class _Alive(TypedDict, total=False):
    every: _Duration
    within: _Duration
    misses: Annotated[int, Meta(ge=1, le=1000)]


class _Reward(TypedDict, total=False):
    command: _Text
    where: Annotated[str, Meta(pattern="^(head|rank [0-9]{1,5})$")]
    alone: bool
    ready: Table
    alive: Table
    restarts: _Number
    essential: bool
    env: dict[
        Annotated[str, Meta(pattern=r"\A[^=\0]+\Z")], Annotated[str, Meta(pattern=r"\A[^\0]*\Z")]
    ]
    after: list[str]
    gpus: Annotated[int, Meta(ge=0, le=1024)]


_Limits = Annotated[tuple[float, float], Meta(description="least and most")]
_Ask = TypedDict(  # `class` is a word of Python's
    "_Ask",
    {
        "api": Literal["chat", "classify", "score"],
        "path": Annotated[str, Meta(pattern=r"\A/[\w./~%+-]*\Z")],
        "model": _Text,
        "template": _Text,
        "grade": _Text,
        "values": dict[str, float],
        "range": _Limits,
        "class": int,
        "ungraded": float,
        "options": dict[str, Any],
        "parallel": Annotated[int, Meta(ge=1, le=1024)],
        "within": _Duration,
        "tries": Annotated[int, Meta(ge=1, le=20)],
    },
    total=False,
)
_PLACEHOLDERS_OF_ASK = ("query", "prompt", "answer", "label")


class _Service(_Reward, total=False):
    where: Annotated[str, Meta(pattern=rf"^(rank [0-9]{{1,5}}|{_NAME.pattern})$")]
    router: Annotated[str, Meta(pattern=r"\Ahttps?://[^\s/]+/?\Z")]
    weights: Weights
    keep: Annotated[int, Meta(ge=2, le=1000)]


class _Step(TypedDict, total=False):
    command: _Text
    where: Annotated[str, Meta(pattern="^(head|every)$")]
    once: Annotated[str, Meta(pattern=r"\A/[^\0]*\Z")]
    within: _Duration
    after: list[str]


# --- the tables -----------------------------------------------------------------------------------


def parse(
    text: str, path: str, settings: Settings, brought: Table | None = None
) -> tuple[ServicesFile, list[Problem]]:
    """Parse the file's text; return its contents and all problems.

    `brought` are the tables that the job's recipe has: the file replaces them key by key. Without
    a file they are all there is, and `path` is ''.
    """
    reader = _Reader(f"{_VARIABLE}={path}" if path else f"AGENT_JOB={settings.job}")
    try:
        data = merged(brought or {}, parse_toml(text))
    except (ValueError, RecursionError) as error:
        reader.report("", f"text that is no TOML ({error})", "tables such as [services.retriever]")
        return NO_FILE, reader.problems

    # Which tables are there, and by names that may be used?
    tables = reader.read("", data, _File)
    services = tables.get("services", {})
    steps = tables.get("prepare", {})
    groups = reader.groups(tables.get("groups", {}))
    reader.check_names("services", services, ())
    reader.check_names("prepare", steps, services)

    # The reward server; its port stays that of the URL for jobs.
    row = services.pop(REWARD_ROW, None)
    reward = None
    if row is not None:
        reward = reader.fields(REWARD_ROW, row, _Reward)
        reward.pop("port", None)

    # How the judge is asked; without a command it runs elsewhere.
    row = services.get(JUDGE, {})
    ask = reader.ask(row.pop("ask", {}))
    if ask and not row:
        services.pop(JUDGE)

    # The other services, and the steps.
    specs = tuple(reader.service(name, table) for name, table in services.items())
    specs = tuple(reader.with_given_port(at, spec) for at, spec in enumerate(specs))
    reader.check_groups(groups, specs)
    prepared = []
    for name, table in steps.items():
        fields = reader.read(f"[prepare.{name}] ", table, _Step, ["command"])
        fields = {"command": "", "where": ON_HEAD, "within": settings.wait_prepare, **fields}
        variable = f"prepare.{name}, within" if "within" in table else "AGENT_WAIT_PREPARE"
        prepared.append(PrepareStep(name=name, deadline_variable=variable, **fields))

    # Can each of them start, and has the reward server one source?
    rows = {spec.name: (f"[services.{spec.name}] after", spec.after) for spec in specs}
    rows |= {step.name: (f"[prepare.{step.name}] after", step.after) for step in prepared}
    if reward is not None:
        rows[REWARD] = ("[services.reward] after", reward.get("after", ()))
    reader.check_dependencies(rows)
    if reward is not None and settings.reward is not None:
        both = f"{_VARIABLE} + AGENT_REWARD"
        reader.problems.append(Problem(both, "a reward server in each", "one of the two"))

    command = None if reward is None else reward.pop("command", "builtin")
    file = ServicesFile(specs, tuple(prepared), groups, command, reward or {}, ask)
    return file, reader.problems


def merged(brought: Table, given: Table) -> Table:
    """Return tables in which each given key replaces the one that is brought."""
    result = {**brought}
    for key, value in given.items():
        former = brought.get(key)
        if isinstance(value, dict) and isinstance(former, dict):
            result[key] = merged(former, value)
        else:
            result[key] = value
    return result


class _Reader:
    """Reads tables, and collects the problems of all of them."""

    def __init__(self, file: str) -> None:
        self.problems: list[Problem] = []
        self._file = file

    def report(self, where: str, got: str, expected: str) -> None:
        """Add a problem of a table or key."""
        self.problems.append(Problem(f"{self._file} {where}".rstrip(), got, expected))

    def check_names(self, kind: str, tables: Mapping[str, Table], taken: Collection[str]) -> None:
        """Check the names of tables, which become those of logs and waits."""
        for name in tables:
            where = f"[{kind}.{name}]"
            if not _NAME.fullmatch(name):
                self.report(where, f"the name {name!r}", "letters, digits and dashes")
            elif name.lower() in _RESERVED_NAMES or name in taken:
                self.report(where, f"the name {name!r}, which is taken", "another name")

    def groups(self, tables: Mapping[str, Table]) -> tuple[NodeGroup, ...]:
        """Read the groups; their names are those of places, too."""
        groups = []
        taken = {*_PLACES, TRAINER}  # on platforms' own groups, whose names are in lower case
        for name, table in tables.items():
            where = f"[groups.{name}]"
            if not _NAME.fullmatch(name):
                self.report(where, f"the name {name!r}", "letters, digits and dashes")
            elif name.lower() in taken:
                self.report(where, f"the name {name!r}, which is taken", "another name")
            taken.add(name.lower())
            fields = self.read(f"{where} ", table, _Group, ["nodes"])
            groups.append(NodeGroup(name, **{"nodes": 1, **fields, **self._part(where, fields)}))
        return tuple(groups)

    def _part(self, where: str, fields: Fields) -> Fields:
        """Return the nodes of a group that are a part of all nodes."""
        text = fields.get("nodes")
        if not isinstance(text, str):
            return {}
        part, whole = map(int, text.split("/"))
        if part >= whole:
            self.report(f"{where} nodes", text, 'a part below 1, as "1/2"')
        return {"nodes": 1, "part": (part, whole)}

    def check_groups(self, groups: tuple[NodeGroup, ...], specs: tuple[ServiceSpec, ...]) -> None:
        """Check that each service has a place, and each group something that runs there."""
        names = {group.name for group in groups}
        for spec in specs:
            label = f"[services.{spec.name}]"
            where = spec.where
            if where.kind == "group" and where.group not in names:
                places = ", ".join([*_PLACES, '"rank N"', *sorted(names)])
                self.report(f"{label} where", f"{where.group!r}", f"one of {places}")
            if spec.weights is not None and where.kind != "group":
                self.report(f"{label} weights", f"a service on {where.sentence()}", _IN_A_GROUP)
            if spec.weights in FRONTED and spec.router:
                got = f'a router, beside weights = "{spec.weights}"'
                expected = "no router: its workers are the ports of the front, {addresses:NAME}"
                self.report(f"{label} router", got, expected)
            if spec.keep and spec.weights not in FRONTED:
                fronted = " or ".join(f'"{name}"' for name in sorted(FRONTED))
                got = "folders to keep of a service without a front"
                self.report(f"{label} keep", got, f"weights = {fronted} beside it")
            if spec.weights in FRONTED and spec.port is None:
                got = "no port that the agent knows"
                self.report(f"{label} ready", got, "ready.http or ready.tcp with the engine's port")
        for group in groups:
            own = [spec for spec in specs if spec.where.group == group.name]
            with_gpus = [spec.name for spec in own if spec.gpus]
            if not own and not group.ray and not self.problems:  # else it may follow from those
                got = "a group without a service, whose nodes join no Ray"
                expected = f'a service with where = "{group.name}", or ray = true'
                self.report(f"[groups.{group.name}]", got, expected)
            if len(with_gpus) > 1:
                got = f"{' and '.join(with_gpus)} with GPUs on each node of {group.name}"
                expected = "one service with gpus in a group: it has as many members as fit"
                self.report(f"[services.{with_gpus[1]}] gpus", got, expected)

    def with_given_port(self, at: int, spec: ServiceSpec) -> ServiceSpec:
        """Return a service with the port that the agent gives it, if it takes one."""
        names_port = GIVEN_PORT in str(spec.ready) or spec.ready == TcpProbe(0)
        if spec.takes_port:
            port = DEFAULTS.given + at * _PORTS_OF_SERVICE
            ready = TcpProbe(port) if spec.ready == TcpProbe(0) else spec.ready
            if not names_port:
                got = "{port} in its command alone"
                self.report(f"[services.{spec.name}] ready", got, "{port} in ready, too")
            return replace(spec, port=port, ready=ready)
        if names_port and spec.argv != (*SHELL, ""):
            got = "{port}, which its command does not have"
            self.report(f"[services.{spec.name}] ready", got, "{port} in its command, too")
        return spec

    def read(self, prefix: str, table: Table, kind: type, required: Collection[str] = ()) -> Fields:
        """Return the values that a table sets, ready for use; {} if one of them is wrong."""
        # Are all keys there, and none that is unknown?
        for key in required:
            if key not in table:
                self.report(f"{prefix}{key}", "nothing", "a value")
        for key in table.keys() - kind.__annotations__:
            self.report(
                f"{prefix}{key}", "an unknown key", f"one of {', '.join(kind.__annotations__)}"
            )

        # Have the values the right types and limits?
        try:
            fields: Fields = convert(table, kind)
        except ValidationError as error:
            what, _, place = str(error).partition(" - at `$.")
            expected, _, got = what.removeprefix("Expected ").partition(", got ")
            key = place[:-1]
            in_words = _expected_in_words(kind, key)
            if in_words:
                got, expected = repr(table.get(key)), in_words
            self.report(f"{prefix}{key}", got or "another value", expected)
            return {}

        # Durations become seconds, places nodes, and dependencies names in a run, each once.
        for key in fields.keys() & {"within", "every"}:
            try:
                fields[key] = duration(str(fields[key]))
            except ValueError as error:  # noqa: PERF203 - each is a problem
                self.report(f"{prefix}{key}", str(fields.pop(key)), str(error))
        if "where" in fields:
            fields["where"] = _place(fields["where"])
        if "after" in fields:
            names = (NAMES_IN_AFTER.get(name, name) for name in fields["after"])
            fields["after"] = tuple(dict.fromkeys(names))
        return fields

    def service(self, name: str, table: Table) -> ServiceSpec:
        """Read one service; what is missing is a problem, and gets a stand-in here."""
        given = self.fields(name, table, _Service, ["command", "ready"])
        command = given.pop("command", "")
        ready = given.pop("ready", LogPattern(""))
        argv = (*SHELL, command)
        variable = f"services.{name}, ready.within"
        fields = {"within": 600.0, "deadline_variable": variable, "bind": BY_COMMAND, **given}
        if fields.get("where", ON_HEAD).kind == "group":
            fields = {"restarts": _RESTARTS_OF_MEMBER, **fields}
        return ServiceSpec(name, command, argv, ready, **fields)

    def fields(self, name: str, table: Table, kind: type, required: Collection[str] = ()) -> Fields:
        """Read the fields of a service that a table sets."""
        label = f"[services.{name}]"
        fields = self.read(f"{label} ", table, kind, required)

        # A node for one service alone is named by its rank.
        where = fields.get("where", ON_HEAD)
        if fields.get("alone") and not where.rank:
            expected = 'where = "rank N" with N from 1 on'
            self.report(f"{label} alone", f"true on {where.sentence()}", expected)

        # The tables in it.
        if "ready" in fields:
            fields |= self._ready(label, fields.pop("ready"), is_needed="ready" in required)
        if "within" in fields:
            fields["deadline_variable"] = f"services.{name}, ready.within"
        if "alive" in fields:
            alive = self.read(f"{label} alive.", fields["alive"], _Alive)
            fields["alive"] = LivenessCheck(**alive)
        if "router" in fields:
            fields["router"] = fields["router"].rstrip("/")
            if not isinstance(fields.get("ready"), HttpProbe):
                got = "a router for a service without ready.http"
                self.report(f"{label} router", got, "ready.http, whose address the router has")
        if "env" in fields:
            selected = sorted(fields["env"].keys() & {CUDA, HIP, ROCR})
            if selected and fields.get("gpus"):
                got = f"{selected[0]} beside gpus = {fields['gpus']}, which sets it"
                self.report(f"{label} env", got, "one of the two")
            fields["env"] = tuple(fields["env"].items())
        return fields

    def _ready(self, label: str, table: Table, *, is_needed: bool) -> Fields:
        """Read `ready`, whose probe is exactly one of http, tcp and log, with the probed port."""
        given = self.read(f"{label} ready.", table, _Ready)
        fields = {"within": given.pop("within")} if "within" in given else {}

        # Exactly one probe, of which each has its own value.
        ways = table.keys() & {"http", "tcp", "log"}
        if len(ways) > 1 or (is_needed and not ways):
            self.report(f"{label} ready", ", ".join(sorted(ways)) or "nothing", _ONE_PROBE)
        elif "http" in given:
            fields["ready"] = HttpProbe(given["http"], given.get("body"), given.get("expect", ""))
            try:
                fields["port"] = _own_port(given["http"])
            except ValueError:
                expected = "a URL, http://{node_ip}:port/path"
                self.report(f"{label} ready.http", given["http"], expected)
        elif given.keys() & {"body", "expect"}:
            self.report(f"{label} ready", "body or expect without http", "ready.http beside it")
        elif given.get("tcp") == GIVEN_PORT:
            fields["ready"] = TcpProbe(0)
        elif isinstance(given.get("tcp"), str):
            self.report(
                f"{label} ready.tcp", repr(given["tcp"]), f"a port's number, or {GIVEN_PORT}"
            )
        elif "tcp" in given:
            fields |= {"ready": TcpProbe(given["tcp"]), "port": given["tcp"]}
        elif "log" in given:
            fields["ready"] = LogPattern(given["log"])
            try:
                re.compile(given["log"])
            except (re.error, RecursionError) as error:
                self.report(f"{label} ready.log", str(error), "a regular expression")
        return fields

    def ask(self, table: Table) -> Fields:
        """Read how the judge is asked, in the names of the reward server's --judge."""
        label = f"[services.{JUDGE}] ask."
        fields = self.read(label, table, _Ask)
        numbers = [*fields.get("range", ()), *fields.get("values", {}).values()]
        numbers.append(fields.get("ungraded", 0.0))
        if not all(map(math.isfinite, numbers)):
            self.report(f"{label[:-1]}", "a number that is not finite", "finite numbers")

        # Does the pattern find a grade, and the template have what is graded?
        try:
            groups = re.compile(fields.get("grade", "()")).groups
        except (re.error, RecursionError) as error:
            self.report(f"{label}grade", str(error), "a regular expression")
        else:
            if groups == 0:
                expected = (
                    "a regular expression whose first group is the grade, as Grade: ([0-9.]+)"
                )
                self.report(f"{label}grade", repr(fields["grade"]), expected)
        low, high = fields.get("range", (0.0, 1.0))
        if low >= high:
            self.report(f"{label}range", f"[{low:g}, {high:g}]", "the least grade, then the most")
        template = fields.get("template", "{query}")
        names = re.findall(r"(?<!\$)\{([a-z_]+)\}", template)
        for name in {*names} & {*NODE_PLACEHOLDERS}:
            known = " ".join(f"{{{placeholder}}}" for placeholder in _PLACEHOLDERS_OF_ASK)
            self.report(f"{label}template", f"{{{name}}}", f"placeholders out of {known}")
        if not {"query", "answer"} & {*names}:
            self.report(f"{label}template", "no answer in it", "{answer} or {query} in it")
        try:
            json.dumps(fields.get("options"))
        except (TypeError, ValueError) as error:
            self.report(f"{label}options", str(error), "values that JSON has")
            del fields["options"]
        if "class" in fields:
            fields["at"] = fields.pop("class")
        return fields

    def check_dependencies(self, rows: Mapping[str, tuple[str, tuple[str, ...]]]) -> None:
        """Check that all dependencies exist and have no cycle; `rows` have key and value."""
        for key, after in rows.values():
            for name in {*after} - {*rows, *NAMES_IN_AFTER.values()}:
                known = ", ".join(sorted({*rows, *NAMES_IN_AFTER}))
                self.report(key, f"the unknown name {name!r}", f"names out of {known}")

        try:
            TopologicalSorter({name: after for name, (_, after) in rows.items()}).prepare()
        except CycleError as error:
            cycle = error.args[1][::-1]
            got = f"a cycle ({' waits for '.join(cycle)})"
            self.report(rows[cycle[0]][0], got, "dependencies without a cycle")


def _expected_in_words(kind: type, key: str) -> str:
    """Return the values that a key may have: its choices or its description; '' for neither."""
    hint = get_type_hints(kind, include_extras=True).get(key)
    described = [one.description for one in get_args(hint) if isinstance(one, Meta)]
    if get_origin(hint) is Annotated and described:
        return described[0] or ""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    return ""


def _place(text: str) -> Where:
    """Return the nodes that a text names: `rank N`, a kind of nodes, or a group."""
    if text in _PLACES:
        return Where(text)
    kind, _, rank = text.partition(" ")
    return Where("rank", int(rank)) if rank else Where("group", group=kind)


def _own_port(url: str) -> int | None:
    """Return the port that a URL names on its own node; raise ValueError if it is no URL."""
    parts = urlsplit(Placeholders("127.0.0.1", "head", "0", "/", port="1").fill(url))
    host = parts.hostname or "{"

    # A remaining brace is an unknown placeholder.
    if parts.scheme not in {"http", "https"} or "{" in host or parts.port == 0 or " " in url:
        raise ValueError(url)
    if not is_loopback(host):
        return None
    if parts.port:
        return parts.port
    return 443 if parts.scheme == "https" else 80
