"""Reads the TOML file of AGENT_SERVICES: services and prepare steps.

All problems are collected, each with file, table and key.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

from msgspec import Meta, ValidationError, convert

from agent.base.errors import Problem
from agent.base.text import parse_toml
from agent.settings.values import duration
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
    from collections.abc import Callable, Iterable, Mapping

    from agent.settings.model import Settings
    from agent.work.services import Readiness


T = TypeVar("T")
_Text = Annotated[str, Meta(pattern=r"\A[^\0]*[^\0\s][^\0]*\Z")]
"""A text that is not blank."""
_Port = Annotated[int, Meta(ge=1, le=65_535)]
_Restarts = Annotated[int, Meta(ge=0, le=1000)]
_Misses = Annotated[int, Meta(ge=1, le=1000)]


class Table:
    """One table of the file: returns the values of keys, and collects problems."""

    def __init__(
        self, data: Mapping[str, Any], label: str, prefix: str, problems: list[Problem]
    ) -> None:
        self.data = data
        self._label = label
        """The file and the table, for problems."""
        self._prefix = prefix
        """The prefix of its keys, such as `ready.`."""
        self.problems = problems

    def report(self, key: str, got: object, expected: str) -> None:
        """Add a problem of a key."""
        text = got if isinstance(got, str) else repr(got)
        where = f"{self._label} {self._prefix}{key}".rstrip(". ")
        self.problems.append(Problem(where, text, expected))

    def reject_unknown_keys(self, known: Iterable[str]) -> None:
        """Add a problem for every unknown key."""
        keys = tuple(known)
        for key in self.data:
            if key not in keys:
                self.report(key, "an unknown key", f"one of {', '.join(keys)}")

    def tables(self, key: str) -> dict[str, Table]:
        """Return the tables below a key, by name."""
        found = self.data.get(key, {})
        if not isinstance(found, dict):
            self.report(key, found, f"tables such as [{key}.NAME]")
            return {}
        made = {}
        for name, table in found.items():
            label = f"{self._label} [{key}.{name}]"
            if isinstance(table, dict):
                made[name] = Table(table, label, "", self.problems)
            else:
                self.problems.append(Problem(label, repr(table), f"a table [{key}.{name}]"))
        return made

    def inner(self, key: str) -> Table:
        """Return the inner table of a key; an empty one if the key is missing."""
        found = self.data.get(key, {})
        if not isinstance(found, dict):
            self.report(key, found, f"keys such as {key}.within")
            found = {}
        return Table(found, self._label, f"{key}.", self.problems)

    def get(self, key: str, kind: type[T], expected: str) -> T | None:
        """Return a value of this type; None for a missing or a wrong one."""
        value = self.data.get(key)
        if value is None:
            return None
        try:
            return convert(value, kind)
        except ValidationError:
            self.report(key, value, expected)
            return None

    def text(self, key: str, expected: str) -> str | None:
        """Return a text that is not blank."""
        return self.get(key, _Text, expected)

    def read(self, key: str, reader: Callable[[str], float], default: float) -> float:
        """Return a text or number as converted by a reader."""
        value = self.data.get(key)
        if value is None:
            return default
        try:
            return reader("" if isinstance(value, bool) else str(value))
        except ValueError as error:
            self.report(key, value, str(error))
            return default

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.get(key, bool, "true or false, without quotes")
        return default if value is None else value

    def count(self, key: str, default: int, low: int) -> int:
        """Return a whole number up to 1000."""
        kind = _Restarts if low == 0 else _Misses
        value = self.get(key, kind, f"a whole number from {low} to 1000")
        return default if value is None else value


REWARD_ROW = "reward"
"""The table that replaces AGENT_REWARD."""
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
_WITHIN = 600.0
_RESTARTS = 3
_READY = ("http", "tcp", "log")
_ANYWHERE = Placeholders("127.0.0.1", "127.0.0.1", "0", "/")
_SERVICE_KEYS = (
    *("command", "where", "alone", "ready", "alive", "restarts", "essential", "env", "after"),
)
_STEP_KEYS = ("command", "where", "once", "within", "after")


def parse(text: str, path: str, settings: Settings) -> tuple[ServicesFile, list[Problem]]:
    """Parse the file's text; return its contents and all problems."""
    try:
        data = parse_toml(text)
    except (ValueError, RecursionError) as error:
        got = f"text that is no TOML ({error})"
        return NO_FILE, [Problem(f"{_VARIABLE}={path}", got, "tables such as [services.retriever]")]
    top = Table(data, f"{_VARIABLE}={path}", "", [])
    services, steps = top.tables("services"), top.tables("prepare")
    top.reject_unknown_keys(("services", "prepare"))
    row = services.pop(REWARD_ROW, None)
    command, fields = (None, {}) if row is None else _reward(row)
    made = ServicesFile(
        services=tuple(_service(name, table) for name, table in services.items()),
        steps=tuple(_step(name, table, settings.wait_prepare) for name, table in steps.items()),
        reward=command,
        reward_fields=fields,
    )
    _check_names(services, steps)
    rewards = {} if row is None else {REWARD_ROW: row}
    _check_dependencies({**services, **rewards, **steps})
    if row is not None and settings.reward is not None:
        both = f"{_VARIABLE} + AGENT_REWARD"
        top.problems.append(Problem(both, "a reward server in each", "one of the two"))
    return made, top.problems


def _service(name: str, table: Table) -> ServiceSpec:
    """Read one service; invalid values become problems and get a placeholder."""
    command = _command(table)
    ready = _ready(table.inner("ready"), needed=isinstance(table.data.get("ready", {}), dict))
    fields = {"within": _WITHIN, **_fields(table, ("head", "every", "workers"))}
    return ServiceSpec(
        name=name,
        asked=command,
        argv=("/bin/sh", "-c", command),
        ready=ready or TcpProbe(0),
        deadline_variable=f"services.{name}, ready.within",
        port=None if ready is None else _port(ready),
        bind=BY_COMMAND,
        **fields,
    )


def _reward(table: Table) -> tuple[str, dict[str, Any]]:
    """Read the command of the reward server, and the fields of its service that the table sets."""
    command = table.text("command", "a shell command, or nothing for the bundled server")
    if command is not None and command.lower().startswith(("http://", "https://")):
        table.report("command", command, "a shell command; a URL goes into AGENT_REWARD")
    fields = _fields(table, ("head",))
    ready = _ready(table.inner("ready"), needed=False)
    if ready is not None:
        fields["ready"] = ready
    if "within" in fields:
        fields["deadline_variable"] = "services.reward, ready.within"
    return command or "builtin", fields


def _fields(table: Table, places: tuple[str, ...]) -> dict[str, Any]:
    """Read the keys that every service has; `within` and `after` only if they are given."""
    where = _where(table, places)
    fields: dict[str, Any] = {
        "where": where,
        "alone": _alone(table, where),
        "restarts": table.count("restarts", _RESTARTS, 0),
        "essential": table.flag("essential", default=True),
        "env": _env(table),
        "alive": _alive(table),
    }
    ready = table.data.get("ready")
    if isinstance(ready, dict) and "within" in ready:
        fields["within"] = table.inner("ready").read("within", duration, _WITHIN)
    if "after" in table.data:
        fields["after"] = _after(table)
    table.reject_unknown_keys(_SERVICE_KEYS)
    return fields


def _command(table: Table) -> str:
    if "command" not in table.data:
        table.report("command", "nothing", "a shell command")
    return table.text("command", "a shell command") or ""


def _step(name: str, table: Table, limit: float) -> PrepareStep:
    command = _command(table)
    once = table.text("once", "an absolute path, such as /data/gsm8k/.prepared")
    if once is not None and not once.startswith("/"):
        table.report("once", once, "an absolute path, such as /data/gsm8k/.prepared")
    given = "within" in table.data
    step = PrepareStep(
        name=name,
        command=command,
        where=_where(table, ("head", "every")),
        within=table.read("within", duration, limit),
        deadline_variable=f"prepare.{name}, within" if given else "AGENT_WAIT_PREPARE",
        once=once,
        after=_after(table),
    )
    table.reject_unknown_keys(_STEP_KEYS)
    return step


def _after(table: Table) -> tuple[str, ...]:
    names = _names(table)
    if names is None:
        table.report("after", table.data["after"], 'a list of names, such as ["gsm8k"]')
    return names or ()


def _names(table: Table) -> tuple[str, ...] | None:
    """Return the names in `after` as in a run, without duplicates; None if it is no such list."""
    after = table.data.get("after", [])
    names = [name for name in after if isinstance(name, str)] if isinstance(after, list) else []
    if not isinstance(after, list) or len(names) < len(after):
        return None
    return tuple(dict.fromkeys(NAMES_IN_AFTER.get(name, name) for name in names))


def _where(table: Table, words: tuple[str, ...]) -> Where:
    value = table.data.get("where", "head")
    ranks = "every" not in words or "workers" in words
    kinds = {"head": ON_HEAD, "every": ON_EVERY, "workers": Where("workers")}
    if isinstance(value, str) and value in words:
        return kinds[value]
    rank = _RANK.fullmatch(value) if isinstance(value, str) and ranks else None
    if rank is not None:
        return Where("rank", int(rank[1]))
    expected = ", ".join((*words, 'or "rank N"') if ranks else words)
    table.report("where", value, f"one of {expected}")
    return ON_HEAD


def _alone(table: Table, where: Where) -> bool:
    alone = table.flag("alone", default=False)
    if alone and (where.kind != "rank" or not where.rank):
        table.report("alone", f"true on {where.sentence()}", 'where = "rank N" with N from 1 on')
    return alone


def _ready(table: Table, *, needed: bool) -> Readiness | None:
    """Read the readiness probe of a service: exactly one of http, tcp and log."""
    table.reject_unknown_keys((*_READY, "body", "expect", "within"))
    ways = [way for way in _READY if way in table.data]
    for key in ("body", "expect"):
        if key in table.data and ways != ["http"]:
            table.report(key, "a value without http", "ready.http beside it")
    if len(ways) != 1:
        if ways or needed:
            got = " and ".join(ways) or "nothing"
            table.report("", got, "one of http, tcp and log")
        return None
    if ways == ["tcp"]:
        port = table.get("tcp", _Port, "a port from 1 to 65535")
        return None if port is None else TcpProbe(port)
    if ways == ["log"]:
        return _log(table)
    url = table.text("http", "a URL, http://{node_ip}:port/path")
    body = table.text("body", "what is posted, as text")
    expect = table.text("expect", "what the reply must contain")
    if url is None or not _is_url(url):
        table.report("http", table.data["http"], "a URL, http://{node_ip}:port/path")
        return None
    return HttpProbe(url, body, expect or "")


def _log(table: Table) -> LogPattern | None:
    pattern = table.text("log", "a regular expression")
    if pattern is None:
        return None
    try:
        re.compile(pattern)
    except (re.error, RecursionError) as error:
        table.report("log", pattern, f"a regular expression ({error})")
    return LogPattern(pattern)


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(_ANYWHERE.fill(url))
        host = parts.hostname or "{"
        whole = "{" not in host and parts.port != 0  # a remaining brace is an unknown placeholder
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and whole and not any(c.isspace() for c in url)


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


def _env(table: Table) -> tuple[tuple[str, str], ...]:
    env = table.data.get("env", {})
    if not isinstance(env, dict):
        table.report("env", env, 'names and texts, such as { HF_HOME = "/data/hf" }')
        return ()
    for name, text in env.items():
        if not isinstance(text, str) or "\0" in text or not name or "=" in name:
            table.report(f"env.{name}", text, "a variable's name and its text, in quotes")
    return tuple((name, text) for name, text in env.items() if isinstance(text, str))


def _alive(table: Table) -> LivenessCheck | None:
    """Read how the service is probed while the job runs."""
    if "alive" not in table.data:
        return None
    inner = table.inner("alive")
    default = LivenessCheck()
    alive = LivenessCheck(
        every=inner.read("every", duration, default.every),
        within=inner.read("within", duration, default.within),
        misses=inner.count("misses", default.misses, 1),
    )
    inner.reject_unknown_keys(("every", "within", "misses"))
    return alive


def _check_names(services: Mapping[str, Table], steps: Mapping[str, Table]) -> None:
    """Check names: each becomes the name of a log and of a wait."""
    for name, table in [*services.items(), *steps.items()]:
        if not _NAME.fullmatch(name):
            table.report("", f"the name {name!r}", "letters, digits and dashes")
        elif name.lower() in _RESERVED_NAMES:
            table.report("", f"the name {name!r}, which the agent itself uses", "another name")
    for name in services.keys() & steps.keys():
        steps[name].report("", f"also the name of a service: {name!r}", "another name")


def _check_dependencies(tables: Mapping[str, Table]) -> None:
    """Check that all dependencies exist and have no cycle."""
    known = {NAMES_IN_AFTER.get(name, name): name for name in tables}
    after = {own: _names(tables[name]) or () for own, name in known.items()}
    for own, name in known.items():
        for one in after[own]:
            if one == own:
                tables[name].report("after", f"{name}, which is this table", "other names")
            elif one not in known and one not in NAMES_IN_AFTER.values():
                expected = ", ".join(sorted({*tables, *NAMES_IN_AFTER} - {name}))
                tables[name].report(
                    "after", f"the unknown name {one!r}", f"names out of {expected}"
                )
    others = {own: [one for one in after[own] if one != own] for own in after}
    found = [known[one] for one in find_cycle(others)]
    if found:
        pairs = zip(found, [*found[1:], found[0]], strict=True)
        cycle = ", ".join(f"{one} waits for {other}" for one, other in pairs)
        tables[found[0]].report("after", f"a cycle ({cycle})", "dependencies without a cycle")
