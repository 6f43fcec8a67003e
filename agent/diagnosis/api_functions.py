"""The row about a client of a model's API without a connection: its first exception decides."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError

_KEY = "model API not reached"
_REASONS = (
    (
        re.compile(r"Illegal header (?:value|name)"),
        "a client could not make its request to a model's API: a header's value is not allowed",
        "Mostly it is the API key: it is empty, or has a line break at its end",
    ),
    (
        re.compile(r"UnsupportedProtocol|missing an 'http|unknown url type|No scheme"),
        "the address of a model's API does not begin with http:// or https://",
        "Write it so in the client's base_url",
    ),
    (
        re.compile(
            r"Name or service not known|[Nn]ame resolution|nodename nor servname|getaddrinfo"
        ),
        "the host of a model's API has no address on this node",
        "Correct its name, or give its number; look at the DNS of the pods",
    ),
    (
        re.compile(
            r"[Ss]erver disconnected|peer closed connection|RemoteProtocolError|ReadError"
            r"|Connection reset|incomplete (?:message|chunked)"
        ),
        "the server with the model's API closed the connection before its answer was whole",
        "Look at the end of its own log: it ended, or had too many requests; or a proxy closed it",
    ),
    (
        re.compile(r"All connection attempts failed|[Cc]onnection refused|Connect call failed"),
        "no server answers at the address of the model's API",
        "Does it run, and does this node reach that address? The end of its own log may say more",
    ),
)
"""What the client's error was raised from, and what it shows."""
_NO_REASON = (
    "no connection to the server with the model's API came about, or it broke",
    "Is the address right, and does it answer from this node (`curl -i`)? See the end of its log",
)


def request_to_a_model_api(error: ParsedError) -> Cause | None:
    """A client had no connection: its own message is the same for each reason."""
    chain = [part.line for part in error.chain()]
    for pattern, sentence, remedy in _REASONS:
        if any(pattern.search(line) for line in chain):
            return Cause(_KEY, sentence, remedy)
    return Cause(_KEY, *_NO_REASON)
