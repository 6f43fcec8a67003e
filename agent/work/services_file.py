"""The file that AGENT_SERVICES names: services and prepare steps as tables of TOML, read with care.

Everything that is wrong is told together, each with file, table and key.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent.base.errors import Problem
from agent.settings.values import duration
from agent.work.after import CALLED, circle
from agent.work.prepare import PrepareStep
from agent.work.services import Alive, Listens, Logs, Replies, ServiceSpec
from agent.work.services_asked import NO_FILE, RewardRow, ServicesFile
from agent.work.toml_table import Table
from agent.work.where import ON_EVERY, ON_HEAD, Place, Where

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings
    from agent.work.services import Readiness

REWARD_ROW = "reward"
"""The table that stands for AGENT_REWARD."""
_VARIABLE = "AGENT_SERVICES"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_RANK = re.compile(r"rank ([0-9]{1,5})")
_TAKEN = frozenset(
    {
        *("agent", "ray", "job", "ray-start", "ray-bridge", "ray-job"),
        *("prepare", "prepare-each", "reward-server", "model"),
        *("head", "workers", "submit", "join", "stop"),
    }
)
"""Names of the agent's own logs and waits."""
_WITHIN = 600.0
_RESTARTS = 3
_MOST_RESTARTS = 1000
_READY = ("http", "tcp", "log")
_ANYWHERE = Place("127.0.0.1", "127.0.0.1", "0", "/")
_SERVICE_KEYS = (
    *("command", "where", "alone", "ready", "alive", "restarts", "essential", "env", "after"),
)
_STEP_KEYS = ("command", "where", "once", "within", "after")


def parse(text: str, path: str, settings: Settings) -> tuple[ServicesFile, list[Problem]]:
    """Read the file's text; return what it asks for, and everything that is wrong with it."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        data: dict[str, Any] = toml.loads(text)
    except (toml.TOMLDecodeError, RecursionError) as error:
        got = f"text that is no TOML ({error})"
        return NO_FILE, [Problem(f"{_VARIABLE}={path}", got, "tables such as [services.retriever]")]
    top = Table(data, f"{_VARIABLE}={path}", "", [])
    services, steps = top.tables("services"), top.tables("prepare")
    top.nothing_else(("services", "prepare"))
    row = services.pop(REWARD_ROW, None)
    reward = None if row is None else _reward(row)
    made = ServicesFile(
        services=tuple(_service(name, table) for name, table in services.items()),
        steps=tuple(_step(name, table, settings.wait_prepare) for name, table in steps.items()),
        reward=reward,
    )
    _judge_names(services, steps)
    rewards = {} if row is None else {REWARD_ROW: row}
    _judge_dependencies({**services, **rewards, **steps})
    if reward is not None and settings.reward is not None:
        both = f"{_VARIABLE} + AGENT_REWARD"
        top.problems.append(Problem(both, "a reward server in each", "one of the two"))
    return made, top.problems


def _service(name: str, table: Table) -> ServiceSpec:
    """Read one service; what is missing or wrong is noted, and stands in for itself."""
    command = table.text("command", "a shell command")
    if command is None and "command" not in table.data:
        table.wrong("command", "nothing", "a shell command")
    ready = _ready(table.inner("ready"), needed=isinstance(table.data.get("ready", {}), dict))
    where = _where(table, ("head", "every", "workers"))
    spec = ServiceSpec(
        name=name,
        asked=command or "",
        argv=("/bin/sh", "-c", command or ""),
        ready=ready or Listens(0),
        within=_within(table) or _WITHIN,
        deadline_variable=f"services.{name}, ready.within",
        where=where,
        restarts=table.whole("restarts", _RESTARTS, 0, _MOST_RESTARTS),
        essential=table.flag("essential", default=True),
        env=_env(table),
        port=None if ready is None else _port(ready),
        bind="as its command says",
        alone=_alone(table, where),
        alive=_alive(table),
        after=_after(table) or (),
    )
    table.nothing_else(_SERVICE_KEYS)
    return spec


def _reward(table: Table) -> RewardRow:
    where = _where(table, ("head",))
    command = table.text("command", "a shell command, or nothing for the bundled server")
    if command is not None and command.lower().startswith(("http://", "https://")):
        table.wrong("command", command, "a shell command; a URL goes into AGENT_REWARD")
    row = RewardRow(
        command=command,
        where=where,
        alone=_alone(table, where),
        ready=_ready(table.inner("ready"), needed=False),
        within=_within(table),
        restarts=table.whole("restarts", _RESTARTS, 0, _MOST_RESTARTS),
        essential=table.flag("essential", default=True),
        env=_env(table),
        alive=_alive(table),
        after=_after(table),
    )
    table.nothing_else(_SERVICE_KEYS)
    return row


def _step(name: str, table: Table, limit: float) -> PrepareStep:
    command = table.text("command", "a shell command")
    if command is None and "command" not in table.data:
        table.wrong("command", "nothing", "a shell command")
    once = table.text("once", "an absolute path, such as /data/gsm8k/.prepared")
    if once is not None and not once.startswith("/"):
        table.wrong("once", once, "an absolute path, such as /data/gsm8k/.prepared")
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
    table.nothing_else(_STEP_KEYS)
    return step


def _after(table: Table) -> tuple[str, ...] | None:
    """Read what something waits for; None where it does not say."""
    if "after" not in table.data:
        return None
    names = _names(table)
    if names is None:
        table.wrong("after", table.data["after"], 'a list of names, such as ["gsm8k"]')
    return names or ()


def _names(table: Table) -> tuple[str, ...] | None:
    """Return what `after` names, each once and as a run calls it; None where it is no such list."""
    after = table.data.get("after", [])
    names = [name for name in after if isinstance(name, str)] if isinstance(after, list) else []
    if not isinstance(after, list) or len(names) < len(after):
        return None
    return tuple(dict.fromkeys(CALLED.get(name, name) for name in names))


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
    table.wrong("where", value, f"one of {expected}")
    return ON_HEAD


def _alone(table: Table, where: Where) -> bool:
    alone = table.flag("alone", default=False)
    if alone and (where.kind != "rank" or not where.rank):
        table.wrong("alone", f"true on {where.sentence()}", 'where = "rank N" with N from 1 on')
    return alone


def _ready(table: Table, *, needed: bool) -> Readiness | None:
    """Read how a service is asked whether it is ready: in exactly one way."""
    table.nothing_else((*_READY, "body", "expect", "within"))
    ways = [way for way in _READY if way in table.data]
    for key in ("body", "expect"):
        if key in table.data and ways != ["http"]:
            table.wrong(key, "a value without http", "ready.http beside it")
    if len(ways) != 1:
        if ways or needed:
            got = " and ".join(ways) or "nothing"
            table.wrong("", got, "one of http, tcp and log")
        return None
    if ways == ["tcp"]:
        port = table.data["tcp"]
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
            table.wrong("tcp", port, "a port from 1 to 65535")
            return None
        return Listens(port)
    if ways == ["log"]:
        return _log(table)
    url = table.text("http", "a URL, http://{node_ip}:port/path")
    body = table.text("body", "what is posted, as text")
    expect = table.text("expect", "what the reply must contain")
    if url is None or not _is_url(url):
        table.wrong("http", table.data["http"], "a URL, http://{node_ip}:port/path")
        return None
    return Replies(url, body, expect or "")


def _log(table: Table) -> Logs | None:
    pattern = table.text("log", "a regular expression")
    if pattern is None:
        return None
    try:
        re.compile(pattern)
    except (re.error, RecursionError) as error:
        table.wrong("log", pattern, f"a regular expression ({error})")
    return Logs(pattern)


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(_ANYWHERE.fill(url))
        host = parts.hostname or "{"
        whole = "{" not in host and parts.port != 0  # a brace is left of no placeholder of ours
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and whole and not any(c.isspace() for c in url)


def _port(ready: Readiness) -> int | None:
    """Return the port of its own node on which a service is asked."""
    if isinstance(ready, Listens):
        return ready.port
    if not isinstance(ready, Replies):
        return None
    parts = urlsplit(Place("node", "head").fill(ready.url))
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
        table.wrong("env", env, 'names and texts, such as { HF_HOME = "/data/hf" }')
        return ()
    for name, text in env.items():
        if not isinstance(text, str) or "\0" in text or not name or "=" in name:
            table.wrong(f"env.{name}", text, "a variable's name and its text, in quotes")
    return tuple((name, text) for name, text in env.items() if isinstance(text, str))


def _alive(table: Table) -> Alive | None:
    """Read how it is to be asked again while the job runs."""
    if "alive" not in table.data:
        return None
    inner = table.inner("alive")
    default = Alive()
    alive = Alive(
        every=inner.read("every", duration, default.every),
        within=inner.read("within", duration, default.within),
        misses=inner.whole("misses", default.misses, 1, 1000),
    )
    inner.nothing_else(("every", "within", "misses"))
    return alive


def _judge_names(services: Mapping[str, Table], steps: Mapping[str, Table]) -> None:
    """Each name is a log's and a wait's: it must be fit for both, and nobody else's."""
    for name, table in [*services.items(), *steps.items()]:
        if not _NAME.fullmatch(name):
            table.wrong("", f"the name {name!r}", "letters, digits and dashes")
        elif name.lower() in _TAKEN:
            table.wrong("", f"the name {name!r}, which the agent itself uses", "another name")
    for name in services.keys() & steps.keys():
        steps[name].wrong("", f"the name of a service, too: {name!r}", "a name of its own")


def _judge_dependencies(tables: Mapping[str, Table]) -> None:
    """Each waits for others that there are, and at last for one that waits for nothing."""
    known = {CALLED.get(name, name): name for name in tables}
    after = {own: _names(tables[name]) or () for own, name in known.items()}
    for own, name in known.items():
        for one in after[own]:
            if one == own:
                tables[name].wrong("after", f"{name}, which is this table", "other names")
            elif one not in known and one not in CALLED.values():
                expected = ", ".join(sorted({*tables, *CALLED} - {name}))
                tables[name].wrong("after", f"the unknown name {one!r}", f"names out of {expected}")
    others = {own: [one for one in after[own] if one != own] for own in after}
    found = [known[one] for one in circle(others)]
    if found:
        pairs = zip(found, [*found[1:], found[0]], strict=True)
        told = ", ".join(f"{one} waits for {other}" for one, other in pairs)
        tables[found[0]].wrong("after", f"a circle ({told})", "dependencies without a circle")
