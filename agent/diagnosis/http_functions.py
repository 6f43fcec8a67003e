"""Rows about servers that answer a request with an error: which server, and with what."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError

_STATUS = re.compile(
    r"(?P<status>[45]\d\d) (?:Client|Server) Error: (?P<reason>[^:\n]{0,60}?) for url: (?P<url>\S+)"
    r"|(?:Client|Server) error '(?P<status2>[45]\d\d) (?P<reason2>[^'\n]{0,60})'"
    r" for url '(?P<url2>[^']+)"
    r"|(?P<status3>[45]\d\d), message='(?P<reason3>[^'\n]{0,60})', url='?(?P<url3>[^'\s)]+)"
    r"|HTTP Error (?P<status4>[45]\d\d): (?P<reason4>[^\n]{0,60})"
    r"|Error code: (?P<status5>[45]\d\d)\b"
)
_PLACE = re.compile(r"https?://(?P<host>[^/?#\s'\"]{1,80})(?P<path>/[^?#\s'\"]{0,80})?")
_ASKED = re.compile(
    r"HTTPS?ConnectionPool\(host='(?P<host>[\w.:-]{1,120})', port=(?P<port>\d{1,5})\)"
    r"(?:: Max retries exceeded with url: (?P<path>/[^?\s(]{0,80}))?"
    r"|Cannot connect to host (?P<host2>[\w.-]{1,120}):(?P<port2>\d{1,5})\b"
    r"|Connect call failed \('(?P<host3>[\w.:-]{1,120})', (?P<port3>\d{1,5})"
)
_REFUSES = re.compile(
    r"(?P<closed>Connection refused|\[Errno 111\]|Connect call failed)"
    r"|No route to host|timed out|[Nn]etwork is unreachable"
)
_NO_REWARDS = re.compile(
    r"https?://(?P<place>\S{1,80}) (?:(?P<down>returned no rewards for [\d.e+]{1,12} s)"
    r"|refuses to score): (?P<why>[^\n;]{1,60})"
)
"""What the bundled programs say of their reward server."""
_REMEDIES = {
    "401": "Its key or token is missing, wrong or expired",
    "403": "This account, key or address may not do that there, or a proxy forbids the way: the "
    "text of the answer says which (`curl -i`)",
    "404": "It has no such path or model: is it the program and version that the job expects, and "
    "the name one that it serves?",
    "405": "The path is another one in that server's version",
    "407": "A proxy asks for a name and password: put them into HTTPS_PROXY, or use NO_PROXY",
    "408": "Send less at a time, or let it wait longer",
    "409": "What is to be made exists already there, or is being changed",
    "413": "Send less at a time, or raise the limit of the server or of the proxy before it",
    "429": "Send fewer requests at a time, or wait; a quota that is used up shows so too",
}
_REFUSED = "The server's log says what it does not take: a field, a value, or too long a prompt"
_FAILED = (
    "The server failed at this request: look at the end of its own log at that time, and whether "
    "it fails at each request"
)

_FAILED_BEFORE = (
    "It is not ready, overloaded or has failed (see its own log), or a proxy before it does not "
    "reach it: NO_PROXY leaves the proxy out"
)


def request_of_a_reward(error: ParsedError) -> Cause | None:
    """A reward asks a server: what came of it decides what to do."""
    return (
        _gives_no_rewards(error)
        or _answered(error, " (the reward's server)")
        or _not_reached(error, " (the reward's server)")
    )


def _gives_no_rewards(error: ParsedError) -> Cause | None:
    """Return why a bundled program got no rewards: it asks again until its time is over."""
    found = _NO_REWARDS.match(error.message)
    if found is None:
        return None
    what = found["down"] or "refuses to score"
    sentence = f"the reward server at {found['place']} {what}: {found['why'].strip()}"
    remedy = "Look at the end of its log: reward-server.log if the agent starts it"
    if found["down"]:
        remedy += ". A server that is down for longer needs --reward-seconds in AGENT_JOB_ARGS"
    return Cause("reward server", sentence, remedy)


def request_of_a_search(error: ParsedError) -> Cause | None:
    """A job asks a retriever or search service: what came of it decides what to do."""
    return _answered(error, " (the retriever)") or _not_reached(error, " (the retriever)")


def request_to_an_engine(error: ParsedError) -> Cause | None:
    """A job asks an inference server: what came of it decides what to do."""
    return _answered(error, " (inference server)") or _not_reached(error, " (inference server)")


def refused_by_a_server(error: ParsedError) -> Cause | None:
    """A server answers a request with an error: its status shows whose fault it is."""
    return _answered(error)


def _answered(error: ParsedError, what: str = "") -> Cause | None:
    """Return which error a server answered with; `what` says in parentheses which server it is."""
    found = _STATUS.search(error.message.partition("\n")[0])
    if found is None:
        return None
    fields = found.groupdict()
    status = _first(fields, "status")
    reason = _first(fields, "reason").strip()
    place = _PLACE.match(_first(fields, "url"))
    server = place["host"] if place else "a server"
    path = f" to {place['path']}" if place and place["path"] else ""
    remedy = _REMEDIES.get(status, _REFUSED if status[0] == "4" else _FAILED)
    if status in {"502", "503", "504"}:
        remedy = _FAILED_BEFORE
    answer = f"{status} ({reason})" if reason else status
    return Cause("error of a server", f"{server}{what} answered {answer}{path}", remedy)


def unreachable_server(error: ParsedError) -> Cause | None:
    """No connection to a server comes about: the error states its address, not what it is."""
    return _not_reached(error)


def _not_reached(error: ParsedError, what: str = "") -> Cause | None:
    """Return which server is not reached; `what` says in parentheses which one it is."""
    message = error.message.partition("\n")[0]
    refused = _REFUSES.search(message)
    asked = _ASKED.search(message)
    if refused is None or asked is None:
        return None
    fields = asked.groupdict()
    server = f"{_first(fields, 'host')}:{_first(fields, 'port')}{what}"
    path = f" for {fields['path'][:40]}" if fields["path"] else ""
    asks = f", which a process asks{path}"
    if "Read timed out" in message:
        return Cause(
            "server not reached",
            f"the server at {server}{asks}, did not answer in time",
            "Look at its own log and load; ask with less concurrency, or with a longer timeout",
        )
    if refused["closed"]:
        return Cause(
            "server not reached",
            f"no server listens at {server}{asks}",
            "Start it before the job, or look at the end of its own log: it may have ended, or it "
            "listens only at 127.0.0.1 of its node",
        )
    return Cause(
        "server not reached",
        f"no connection to the server at {server}{asks}",
        "Look whether it runs, and at the way to it: its address, a firewall, or a proxy between",
    )


def _first(fields: dict[str, str | None], name: str) -> str:
    """Return the group of some numbered ones that matched."""
    return next((value for key, value in fields.items() if value and key.startswith(name)), "")
