"""Proof by both ends of a request that they hold the same secret, which is not sent.

The server names its session in a 401. The client signs each request with an HMAC over that session,
its own random id, a counter, the method, the path and the body. The server accepts each counter of
a client once and in ascending order, so a replayed request is refused, and signs its reply to that
request. No clock takes part, and a restarted server begins a new session.
"""

from __future__ import annotations

import hmac
import re
import secrets
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

SESSION_HEADER = "Pod-Agent-Session"  # Header of a 401: the session to sign for
PROOF_HEADER = "Pod-Agent-Proof"  # Header of a reply: its signature
SCHEME = "Pod-Agent"  # Scheme of the Authorization header of a signed request
MOST_CLIENTS = 1 << 14  # Counters that a server keeps; one client more begins a new session for all
TRIES = 2  # Requests until a reply is proven: the first may be for an earlier session, or for none
_SESSION = re.compile("[0-9a-f]{32}")
_STREAM = "stream"  # Replaces the digest of a streamed reply: only the start is proven
_MOST_DIGITS = 19  # Of a counter


class Claim(NamedTuple):
    """The signed part of a request, as its Authorization header contains it."""

    session: str
    client: str
    number: int
    digest: str  # The SHA-256 of the body

    def signature(self, secret: bytes, *parts: str, purpose: str = "request") -> str:
        """Return the signature of the request, by its method and path; no part has a line end."""
        text = "\n".join((purpose, *map(str, self), *parts))
        return hmac.digest(secret, text.encode(errors="backslashreplace"), "sha256").hex()

    def reply_signature(self, secret: bytes, status: int, body: bytes | None) -> str:
        """Return the signature of the reply to this request; a streamed one has no body here."""
        content = _STREAM if body is None else digest(body)
        return self.signature(secret, str(status), content, purpose="reply")


def digest(body: bytes | bytearray) -> str:
    """Return the digest of a body."""
    return sha256(body).hexdigest()


def equal_secrets(given: str, wanted: str) -> bool:
    """Compare two texts in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


class Verifier:
    """The server's end: accepts each signed request once."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self.session = secrets.token_hex(16)
        self._counts: dict[str, int] = {}  # The last counter of each client in this session

    def accept(self, authorization: str, method: str, path: str) -> Claim | None:
        """Return a new signed request's claim, else None; compare its digest with the body's."""
        scheme, _, fields = authorization.partition(" ")
        parts = fields.split(".")
        if scheme != SCHEME or len(parts) != 5:
            return None
        session, client, count, body, signature = parts
        if session != self.session or not count.isdecimal() or len(count) > _MOST_DIGITS:
            return None
        if count != str(int(count)):  # other digits, or zeros in front
            return None
        claim = Claim(session, client, int(count), body)
        if not equal_secrets(signature, claim.signature(self._secret, method, path)):
            return None
        if claim.number <= self._counts.get(client, 0):
            return None
        self._counts[client] = claim.number
        if len(self._counts) > MOST_CLIENTS:
            self.session = secrets.token_hex(16)
            self._counts = {}
        return claim


class ReplyProof(Enum):
    """The result of checking a reply."""

    PROVEN = "proven"
    UNPROVEN = "unproven"
    REFUSED = "refused"
    AGAIN = "again"  # The server named its session: sign the request for it and send it again


class Signed(NamedTuple):
    """A request to send: headers and body."""

    headers: Mapping[str, str]
    body: bytes
    claim: Claim | None = None  # None before the session is known: then no body is sent either


class Prover:
    """The client's end, for one server; without a secret it signs nothing and accepts any reply."""

    def __init__(self, secret: str | None) -> None:
        self._secret = None if secret is None else secret.encode()
        self._client = secrets.token_hex(8)
        self._count = 0
        self._session = ""

    def sign(self, method: str, path: str, body: bytes = b"") -> Signed:
        """Sign a request; `path` includes the query, as it is sent."""
        if self._secret is None:
            return Signed({}, body)
        if not self._session:
            return Signed({}, b"")
        self._count += 1
        claim = Claim(self._session, self._client, self._count, digest(body))
        signature = claim.signature(self._secret, method, path)
        fields = ".".join((*map(str, claim), signature))
        return Signed({"Authorization": f"{SCHEME} {fields}"}, body, claim)

    def check(
        self, request: Signed, status: int, headers: Mapping[str, str], body: bytes | None
    ) -> ReplyProof:
        """Check the reply to a request; a streamed one has no body here."""
        if status == 401:
            session = headers.get(SESSION_HEADER, "")
            if self._secret is None or (session and session == self._session):
                return ReplyProof.REFUSED
            if not _SESSION.fullmatch(session):  # of an earlier version, or of another program
                return ReplyProof.UNPROVEN
            self._session = session
            return ReplyProof.AGAIN
        if self._secret is None:
            return ReplyProof.PROVEN
        if request.claim is None:
            return ReplyProof.UNPROVEN
        wanted = request.claim.reply_signature(self._secret, status, body)
        is_proven = equal_secrets(headers.get(PROOF_HEADER, ""), wanted)
        return ReplyProof.PROVEN if is_proven else ReplyProof.UNPROVEN
