"""Reads the TOML file of AGENT_SERVICES: services and prepare steps.

All problems are collected, each with file, table and key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta, ValidationError, convert

from agent.base.errors import Problem
from agent.base.text import parse_toml
from agent.settings.values import LATER, duration, reserved_placeholder
from agent.work.services import (
    BY_COMMAND,
    NAMES_IN_AFTER,
    NO_FILE,
    ON_EVERY,
    ON_HEAD,
    HttpProbe,
    LivenessCheck,
    LogPattern,
    Placeholders,
    PrepareStep,
    ServicesFile,
    ServiceSpec,
    TcpProbe,
    Where,
    find_cycle,
)

if TYPE_CHECKING:
    from agent.settings.model import Settings
    from agent.work.services import Readiness

Read = Callable[[Any], Any]
"""Converts the value of a key, or raises ValueError with what it expects."""
Table = Mapping[str, Any]

REWARD_ROW = "reward"  # The table that replaces AGENT_REWARD
_VARIABLE = "AGENT_SERVICES"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_RANK = re.compile(r"rank ([0-9]{1,5})")
_RESERVED_NAMES = frozenset(
    {
        *("agent", "ray", "job", "ray-start", "ray-bridge", "ray-job"),
        *("prepare", "prepare-each", "reward-server", "model"),
        *("head", "workers", "submit", "join", "stop"),
    }
)
"""Names of the agent's logs and waits."""
_RESERVED_KEYS = ("gpus",)  # For a later version
_WITHIN = 600.0
_ANYWHERE = Placeholders("127.0.0.1", "127.0.0.1", "0", "/")
_PLACES = {"head": ON_HEAD, "every": ON_EVERY, "workers": Where("workers")}
_ANY_RANK = 'or "rank N"'
_TEXT = Annotated[str, Meta(pattern=r"\A[^\0]*[^\0\s][^\0]*\Z")]  # Not blank
_KEYS = dict[str, Any]


# --- the values of keys ---------------------------------------------------------------------------


def _a(kind: object, expected: str) -> Read:
    """Make a reader of values of this type."""

    def read(value: object) -> object:
        try:
            return convert(value, kind)
        except ValidationError:
            raise ValueError(expected) from None

    return read


def _within(value: object) -> float:
    return duration("" if isinstance(value, bool) else str(value))


def _where(*words: str) -> Read:
    """Make a reader of places."""

    def read(value: object) -> Where:
        rank = _RANK.fullmatch(str(value))
        if rank is not None and _ANY_RANK in words:
            return Where("rank", int(rank[1]))
        if value not in words or value == _ANY_RANK:
            raise ValueError(f"one of {', '.join(words)}")
        return _PLACES[str(value)]

    return read


def _after(value: object) -> tuple[str, ...]:
    """Read the names as in a run, without duplicates."""
    names = _a(list[str], 'a list of names, such as ["gsm8k"]')(value)
    return tuple(dict.fromkeys(NAMES_IN_AFTER.get(name, name) for name in names))


def _pattern(value: object) -> str:
    pattern: str = _a(_TEXT, "a regular expression")(value)
    try:
        re.compile(pattern)
    except (re.error, RecursionError) as error:
        raise ValueError(f"a regular expression ({error})") from None
    return pattern


def _url(value: object) -> str:
    expected = "a URL, http://{node_ip}:port/path"
    url: str = _a(_TEXT, expected)(value)
    try:
        parts = urlsplit(_ANYWHERE.fill(url))
        host = parts.hostname or "{"
        whole = "{" not in host and parts.port != 0  # a remaining brace is an unknown placeholder
    except ValueError:
        whole = False
    if not whole or parts.scheme not in {"http", "https"} or any(c.isspace() for c in url):
        raise ValueError(expected)
    return url


def _reward_command(value: object) -> str:
    command: str = _a(_TEXT, "a shell command, or nothing for the bundled server")(value)
    if command.lower().startswith(("http://", "https://")):
        raise ValueError("a shell command; a URL goes into AGENT_REWARD")
    return command


_OWN_ADDRESS = "{head_ip}, {node_ip} or an address of yours"
_A_COMMAND, _ONE_PROBE = "a shell command", "one of http, tcp and log"
_SERVICE: Mapping[str, Read] = {
    "command": _a(_TEXT, _A_COMMAND),
    "where": _where("head", "every", "workers", _ANY_RANK),
    "alone": _a(bool, "true or false, without quotes"),
    "ready": _a(_KEYS, "keys such as ready.within"),
    "alive": _a(_KEYS, "keys such as alive.within"),
    "restarts": _a(Annotated[int, Meta(ge=0, le=1000)], "a whole number from 0 to 1000"),
    "essential": _a(bool, "true or false, without quotes"),
    "env": _a(_KEYS, 'names and texts, such as { HF_HOME = "/data/hf" }'),
    "after": _after,
}
_REWARD = {**_SERVICE, "command": _reward_command, "where": _where("head", _ANY_RANK)}
_READY = {
    "http": _url,
    "tcp": _a(Annotated[int, Meta(ge=1, le=65_535)], "a port from 1 to 65535"),
    "log": _pattern,
    "body": _a(_TEXT, "what is posted, as text"),
    "expect": _a(_TEXT, "what the reply must contain"),
    "within": _within,
}
_ALIVE = {
    "every": _within,
    "within": _within,
    "misses": _a(Annotated[int, Meta(ge=1, le=1000)], "a whole number from 1 to 1000"),
}
_STEP: Mapping[str, Read] = {
    "command": _a(_TEXT, _A_COMMAND),
    "where": _where("head", "every"),
    "once": _a(
        Annotated[str, Meta(pattern=r"\A/[^\0]*\Z")],
        "an absolute path, such as /data/gsm8k/.prepared",
    ),
    "within": _within,
    "after": _after,
}


# --- the tables -----------------------------------------------------------------------------------


def parse(text: str, path: str, settings: Settings) -> tuple[ServicesFile, list[Problem]]:
    """Parse the file's text; return its contents and all problems."""
    reader = _Reader(f"{_VARIABLE}={path}")
    try:
        data = parse_toml(text)
    except (ValueError, RecursionError) as error:
        reader.report("", f"text that is no TOML ({error})", "tables such as [services.retriever]")
        return NO_FILE, reader.problems
    kinds = {kind: _a(_KEYS, f"tables such as [{kind}.NAME]") for kind in ("services", "prepare")}
    given = reader.read("", data, kinds)
    services = reader.tables("services", given.get("services", {}))
    row, reward = services.pop(REWARD_ROW, None), None
    if row is not None:
        reward = reader.fields(f"[services.{REWARD_ROW}]", row, _REWARD, {})
        if "within" in reward:
            reward["deadline_variable"] = "services.reward, ready.within"
    specs = tuple(reader.service(name, table) for name, table in services.items())
    prepared = []
    for name, table in reader.tables("prepare", given.get("prepare", {}), services).items():
        fields = reader.read(f"[prepare.{name}] ", table, _STEP, {"command": _A_COMMAND})
        fields = {"command": "", "where": ON_HEAD, "within": settings.wait_prepare, **fields}
        variable = f"prepare.{name}, within" if "within" in table else "AGENT_WAIT_PREPARE"
        prepared.append(PrepareStep(name=name, deadline_variable=variable, **fields))
    rewards = {} if reward is None else {REWARD_ROW: reward.get("after", ())}
    reader.check_dependencies(
        {one.name: one.after for one in specs} | rewards, {one.name: one.after for one in prepared}
    )
    if reward is not None and settings.reward is not None:
        both = f"{_VARIABLE} + AGENT_REWARD"
        reader.problems.append(Problem(both, "a reward server in each", "one of the two"))
    command = None if reward is None else reward.pop("command", "builtin")
    return ServicesFile(specs, tuple(prepared), command, reward or {}), reader.problems


class _Reader:
    """Reads tables, and collects the problems of all of them."""

    def __init__(self, file: str) -> None:
        self.problems: list[Problem] = []
        self._file = file

    def report(self, where: str, got: str, expected: str) -> None:
        """Add a problem of a table or key."""
        self.problems.append(Problem(f"{self._file} {where}".rstrip(), got, expected))

    def read(
        self,
        prefix: str,
        data: Table,
        keys: Mapping[str, Read],
        required: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the valid values of a table by key; `required` keys have what is expected."""
        found = {}
        for key, expected in (required or {}).items():
            if key not in data:
                self.report(f"{prefix}{key}", "nothing", expected)
        for key, value in data.items():
            if key not in keys:
                got = f"a key that is {LATER}" if key in _RESERVED_KEYS else "an unknown key"
                self.report(f"{prefix}{key}", got, f"one of {', '.join(keys)}")
                continue
            later = reserved_placeholder(value) if isinstance(value, str) else ""
            if later:
                self.report(f"{prefix}{key}", later, _OWN_ADDRESS)
                continue
            try:
                found[key] = keys[key](value)
            except ValueError as error:
                got = value if isinstance(value, str) else repr(value)
                self.report(f"{prefix}{key}", got, str(error))
        return found

    def tables(self, kind: str, given: Table, taken: Iterable[str] = ()) -> dict[str, Table]:
        """Return the tables of one kind by name, which becomes that of a log and of a wait."""
        found: dict[str, Table] = {}
        for name, table in given.items():
            where = f"[{kind}.{name}]"
            if not isinstance(table, dict):
                self.report(where, repr(table), f"a table {where}")
                continue
            found[name] = table
            if not _NAME.fullmatch(name):
                self.report(where, f"the name {name!r}", "letters, digits and dashes")
            elif name.lower() in _RESERVED_NAMES:
                got = f"the name {name!r}, which the agent itself uses"
                self.report(where, got, "another name")
            if name in taken:
                self.report(where, f"also the name of a service: {name!r}", "another name")
        return found

    def service(self, name: str, table: Table) -> ServiceSpec:
        """Read one service; what is missing becomes a problem and gets a placeholder."""
        required = {"command": _A_COMMAND, "ready": _ONE_PROBE}
        given = self.fields(f"[services.{name}]", table, _SERVICE, required)
        fields = {"command": "", "within": _WITHIN, "ready": TcpProbe(0), **given}
        command = fields.pop("command")
        return ServiceSpec(
            name=name,
            asked=command,
            argv=("/bin/sh", "-c", command),
            deadline_variable=f"services.{name}, ready.within",
            port=_port(fields["ready"]),
            bind=BY_COMMAND,
            **fields,
        )

    def fields(
        self, label: str, table: Table, keys: Mapping[str, Read], required: Mapping[str, str]
    ) -> dict[str, Any]:
        """Read the fields of a service that a table sets."""
        fields = self.read(f"{label} ", table, keys, required)
        where = fields.get("where", ON_HEAD)
        if fields.get("alone") and (where.kind != "rank" or not where.rank):
            expected = 'where = "rank N" with N from 1 on'
            self.report(f"{label} alone", f"true on {where.sentence()}", expected)
        if "ready" in fields:
            fields |= self._ready(label, fields.pop("ready"), is_needed="ready" in required)
        if "alive" in fields:
            fields["alive"] = LivenessCheck(**self.read(f"{label} alive.", fields["alive"], _ALIVE))
        for name, text in fields.get("env", {}).items():
            later = reserved_placeholder(text) if isinstance(text, str) else ""
            if later:
                self.report(f"{label} env.{name}", later, _OWN_ADDRESS)
            elif not isinstance(text, str) or "\0" in text or not name or "=" in name:
                expected = "a variable's name and its text, in quotes"
                self.report(f"{label} env.{name}", repr(text), expected)
        if "env" in fields:
            fields["env"] = tuple(fields["env"].items())
        return fields

    def _ready(self, label: str, table: Table, *, is_needed: bool) -> dict[str, Any]:
        """Read `ready`, whose probe is exactly one of http, tcp and log."""
        found = self.read(f"{label} ready.", table, _READY)
        fields = {"within": found["within"]} if "within" in found else {}
        ways = [way for way in ("http", "tcp", "log") if way in table]
        for key in ("body", "expect"):
            if key in found and ways != ["http"]:
                self.report(f"{label} ready.{key}", "a value without http", "ready.http beside it")
        if len(ways) > 1 or (is_needed and not ways):
            got = " and ".join(ways) or "nothing"
            self.report(f"{label} ready", got, _ONE_PROBE)
        elif "http" in found:
            fields["ready"] = HttpProbe(found["http"], found.get("body"), found.get("expect", ""))
        elif "tcp" in found:
            fields["ready"] = TcpProbe(found["tcp"])
        elif "log" in found:
            fields["ready"] = LogPattern(found["log"])
        return fields

    def check_dependencies(
        self, services: Mapping[str, tuple[str, ...]], steps: Mapping[str, tuple[str, ...]]
    ) -> None:
        """Check that all dependencies exist and have no cycle."""
        where = {name: f"[services.{name}] after" for name in services}
        where |= {name: f"[prepare.{name}] after" for name in steps}
        names = {NAMES_IN_AFTER.get(name, name): name for name in where}  # by the name in a run
        after = {own: {**services, **steps}[name] for own, name in names.items()}
        for own, name in names.items():
            for one in after[own]:
                if one == own:
                    self.report(where[name], f"{name}, which is this table", "other names")
                elif one not in names and one not in NAMES_IN_AFTER.values():
                    known = ", ".join(sorted({*where, *NAMES_IN_AFTER} - {name}))
                    self.report(where[name], f"the unknown name {one!r}", f"names out of {known}")
        others = {own: [one for one in after[own] if one != own] for own in after}
        found = [names[one] for one in find_cycle(others)]
        if found:
            pairs = zip(found, [*found[1:], found[0]], strict=True)
            cycle = ", ".join(f"{one} waits for {other}" for one, other in pairs)
            self.report(where[found[0]], f"a cycle ({cycle})", "dependencies without a cycle")


def _port(ready: Readiness) -> int | None:
    """Return the port on its own node where a service is probed."""
    if isinstance(ready, TcpProbe):
        return ready.port
    if not isinstance(ready, HttpProbe):
        return None
    parts = urlsplit(Placeholders("node", "head").fill(ready.url))
    if parts.hostname not in {"node", "127.0.0.1", "localhost", "::1"}:
        return None
    return parts.port or (443 if parts.scheme == "https" else 80)
