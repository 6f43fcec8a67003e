"""Reads the TOML file of AGENT_SERVICES: services and prepare steps.

All problems are collected, each with file, table and key.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent.base.errors import Problem
from agent.settings.values import duration
from agent.work.prepare import PrepareStep
from agent.work.services import (
    BY_COMMAND,
    NAMES_IN_AFTER,
    NO_FILE,
    HttpProbe,
    LivenessCheck,
    LogPattern,
    RewardRow,
    ServicesFile,
    ServiceSpec,
    TcpProbe,
    find_cycle,
)
from agent.work.where import ON_EVERY, ON_HEAD, Placeholders, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent.settings.model import Settings
    from agent.work.services import Readiness


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

    def text(self, key: str, expected: str) -> str | None:
        """Return a text that is not blank."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            self.report(key, value, expected)
            return None
        return value

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
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            self.report(key, value, "true or false, without quotes")
            return default
        return value

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        """Return a whole number."""
        value = self.data.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.report(key, value, f"a whole number from {low} to {high}")
            return default
        return value


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
_MAX_RESTARTS = 1000
_READY = ("http", "tcp", "log")
_ANYWHERE = Placeholders("127.0.0.1", "127.0.0.1", "0", "/")
_SERVICE_KEYS = (
    *("command", "where", "alone", "ready", "alive", "restarts", "essential", "env", "after"),
)
_STEP_KEYS = ("command", "where", "once", "within", "after")


def parse(text: str, path: str, settings: Settings) -> tuple[ServicesFile, list[Problem]]:
    """Parse the file's text; return its contents and all problems."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        data: dict[str, Any] = toml.loads(text)
    except (toml.TOMLDecodeError, RecursionError) as error:
        got = f"text that is no TOML ({error})"
        return NO_FILE, [Problem(f"{_VARIABLE}={path}", got, "tables such as [services.retriever]")]
    top = Table(data, f"{_VARIABLE}={path}", "", [])
    services, steps = top.tables("services"), top.tables("prepare")
    top.reject_unknown_keys(("services", "prepare"))
    row = services.pop(REWARD_ROW, None)
    reward = None if row is None else _reward(row)
    made = ServicesFile(
        services=tuple(_service(name, table) for name, table in services.items()),
        steps=tuple(_step(name, table, settings.wait_prepare) for name, table in steps.items()),
        reward=reward,
    )
    _check_names(services, steps)
    rewards = {} if row is None else {REWARD_ROW: row}
    _check_dependencies({**services, **rewards, **steps})
    if reward is not None and settings.reward is not None:
        both = f"{_VARIABLE} + AGENT_REWARD"
        top.problems.append(Problem(both, "a reward server in each", "one of the two"))
    return made, top.problems


def _service(name: str, table: Table) -> ServiceSpec:
    """Read one service; invalid values become problems and get a placeholder."""
    command = table.text("command", "a shell command")
    if command is None and "command" not in table.data:
        table.report("command", "nothing", "a shell command")
    ready = _ready(table.inner("ready"), needed=isinstance(table.data.get("ready", {}), dict))
    where = _where(table, ("head", "every", "workers"))
    spec = ServiceSpec(
        name=name,
        asked=command or "",
        argv=("/bin/sh", "-c", command or ""),
        ready=ready or TcpProbe(0),
        within=_within(table) or _WITHIN,
        deadline_variable=f"services.{name}, ready.within",
        where=where,
        restarts=table.whole("restarts", _RESTARTS, 0, _MAX_RESTARTS),
        essential=table.flag("essential", default=True),
        env=_env(table),
        port=None if ready is None else _port(ready),
        bind=BY_COMMAND,
        alone=_alone(table, where),
        alive=_alive(table),
        after=_after(table) or (),
    )
    table.reject_unknown_keys(_SERVICE_KEYS)
    return spec


def _reward(table: Table) -> RewardRow:
    where = _where(table, ("head",))
    command = table.text("command", "a shell command, or nothing for the bundled server")
    if command is not None and command.lower().startswith(("http://", "https://")):
        table.report("command", command, "a shell command; a URL goes into AGENT_REWARD")
    row = RewardRow(
        command=command,
        where=where,
        alone=_alone(table, where),
        ready=_ready(table.inner("ready"), needed=False),
        within=_within(table),
        restarts=table.whole("restarts", _RESTARTS, 0, _MAX_RESTARTS),
        essential=table.flag("essential", default=True),
        env=_env(table),
        alive=_alive(table),
        after=_after(table),
    )
    table.reject_unknown_keys(_SERVICE_KEYS)
    return row


def _step(name: str, table: Table, limit: float) -> PrepareStep:
    command = table.text("command", "a shell command")
    if command is None and "command" not in table.data:
        table.report("command", "nothing", "a shell command")
    once = table.text("once", "an absolute path, such as /data/gsm8k/.prepared")
    if once is not None and not once.startswith("/"):
        table.report("once", once, "an absolute path, such as /data/gsm8k/.prepared")
    given = "within" in table.data
    step = PrepareStep(
        name=name,
        command=command or "",
        where=_where(table, ("head", "every")),
        within=table.read("within", duration, limit),
        deadline_variable=f"prepare.{name}, within" if given else "AGENT_WAIT_PREPARE",
        once=once,
        after=_after(table) or (),
    )
    table.reject_unknown_keys(_STEP_KEYS)
    return step


def _after(table: Table) -> tuple[str, ...] | None:
    """Read the dependencies; None without the key."""
    if "after" not in table.data:
        return None
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
        port = table.data["tcp"]
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
            table.report("tcp", port, "a port from 1 to 65535")
            return None
        return TcpProbe(port)
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


def _within(table: Table) -> float | None:
    ready = table.data.get("ready")
    if not isinstance(ready, dict) or "within" not in ready:
        return None
    return table.inner("ready").read("within", duration, _WITHIN)


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
        misses=inner.whole("misses", default.misses, 1, 1000),
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
