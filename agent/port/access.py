"""Credentials of requests to the agent's port, and checks of host names and other sites."""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from aiohttp import web

from agent.base import times
from agent.base.text import is_ip, quota_key
from agent.port.proof import PROOF_HEADER, Claim, Verifier, digest, equal_secrets
from agent.record.log import say
from agent.serving.connections import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_LOGIN_LASTS = 12 * 3600.0  # The page's cookie expires so long after the token was sent.


# --- credentials ---------------------------------------------------------------------------------

COOKIE = "pod_agent"  # The page's; its name ends with the port: browsers send it to all
MOST_GUESSES = 10  # Wrong tokens that an address may send within LOGIN_WINDOW
_MOST_LOGGED = 32  # Addresses with wrong tokens that are logged
_MOST_GUESSING = 4096  # Addresses with wrong tokens that are counted apart
_OTHERS = "many addresses"
_CLAIM: Any = getattr(web, "RequestKey", lambda name, _: name)("claim", Claim)
"""The key of a signed request's claim; aiohttp below 3.14 has texts as keys."""


class Guesses:
    """Wrong tokens by address: after MOST_GUESSES it waits for the end of the minute."""

    def __init__(self) -> None:
        self._wrong: Counter[str] = Counter()  # By address, in this window
        self._window_ends = 0.0
        self._logged: set[str] = set()

    def may_guess(self, ip: str) -> bool:
        """Return whether a token from an address is compared now."""
        is_over = time.monotonic() >= self._window_ends
        return is_over or self._wrong[self._counted_as(ip)] < MOST_GUESSES

    def count(self, ip: str) -> None:
        """Count a wrong token; log an address that reaches the limit, once."""
        now = time.monotonic()
        if now >= self._window_ends:
            self._wrong.clear()
            self._window_ends = now + times.LOGIN_WINDOW
        key = self._counted_as(ip)
        self._wrong[key] += 1
        is_new = key not in self._logged and len(self._logged) < _MOST_LOGGED
        if self._wrong[key] == MOST_GUESSES and is_new:
            self._logged.add(key)
            limit = f"at most {MOST_GUESSES} a minute are compared"
            say(f"wrong tokens are sent to the agent's port from {key}: {limit}", "warning")

    def _counted_as(self, ip: str) -> str:
        """Return the key that an address counts by: beyond _MOST_GUESSING all have the same."""
        key = quota_key(ip)
        if key in self._wrong or len(self._wrong) < _MOST_GUESSING:
            return key
        return _OTHERS


class PortAccess:
    """Checks the credentials of requests to one agent's port."""

    def __init__(self, token: str | None, key: str | None, run_id: Callable[[], str] = str) -> None:
        """Without a token, `key` is the control key of callers on this node."""
        self._token = token
        self._key = key
        self._run_id = run_id
        self._secret = token or key or secrets.token_hex(16)  # the last one is nobody's
        self.verifier = Verifier(self._secret)
        self._form = Guesses()
        self._headers = Guesses()

    def has_token(self, request: web.Request) -> bool:
        """Return whether a request shows the token; True where there is none.

        The page's cookie only reads: what stops or reports needs the token itself.
        """
        if self._token is None or self._shows_secret(request):
            return True
        return request.method in {"GET", "HEAD"} and self._has_cookie(request)

    def has_key(self, request: web.Request) -> bool:
        """Return whether a caller on this node shows the control key."""
        return self._key is not None and is_local(request) and self._shows_secret(request)

    def _shows_secret(self, request: web.Request) -> bool:
        """Return whether a request is signed, or has the secret as its bearer token."""
        given = request.headers.get("Authorization", "")
        claim = self.verifier.accept(given, request.method, request.raw_path)
        if claim is not None:
            request[_CLAIM] = claim
            return True
        token = _bearer_token(given)
        ip = request.remote or ""
        if not token or not self._headers.may_guess(ip):
            return False
        is_own = equal_secrets(token, self._secret)
        if not is_own:
            self._headers.count(ip)
        return is_own

    def has_guessed_enough(self, request: web.Request) -> bool:
        """Return whether a request's bearer token is not compared, since others were wrong."""
        given = request.headers.get("Authorization", "")
        is_bearer = bool(_bearer_token(given))
        return is_bearer and not self._headers.may_guess(request.remote or "")

    def reply_headers(
        self, request: web.Request, status: int, body: bytes | None
    ) -> dict[str, str]:
        """Return the headers that prove the reply to a signed request; a stream has no body."""
        claim = request.get(_CLAIM)
        if claim is None:
            return {}
        return {PROOF_HEADER: claim.reply_signature(self._secret.encode(), status, body)}

    def may_guess(self, request: web.Request) -> bool:
        """Return whether a token that an address sends to the form is compared now."""
        return self._form.may_guess(request.remote or "")

    def login(self, request: web.Request, given: str) -> bool:
        """Return whether the form was sent the token; count a wrong one."""
        is_own = self._token is not None and equal_secrets(given.strip(), self._token)
        if not is_own:
            self._form.count(request.remote or "")
        return is_own

    def set_cookie(self, request: web.Request, answer: web.StreamResponse) -> None:
        """Set the page's cookie: an HMAC of the token, never the token."""
        name = _cookie_name(request)
        ends = int(time.time() + _LOGIN_LASTS)
        answer.set_cookie(
            name,
            f"{ends}.{self._cookie_signature(name, ends)}",
            max_age=int(_LOGIN_LASTS),
            httponly=True,
            samesite="Strict",
            path="/",
        )

    def _has_cookie(self, request: web.Request) -> bool:
        name = _cookie_name(request)
        ends, _, signature = request.cookies.get(name, "").partition(".")
        if not (ends.isascii() and ends.isdecimal() and len(ends) < 16):
            return False
        is_own = equal_secrets(signature, self._cookie_signature(name, int(ends)))
        return is_own and int(ends) > time.time()

    def _cookie_signature(self, name: str, ends: int) -> str:
        text = f"page\n{name}\n{ends}\n{self._run_id()}"  # of another run it is worth nothing
        return hmac.digest((self._token or "").encode(), text.encode(), "sha256").hex()


def _bearer_token(authorization: str) -> str:
    kind, _, token = authorization.partition(" ")
    if kind.lower() != "bearer":
        return ""
    return token.strip()


def is_signed_body(request: web.Request, body: bytes | bytearray) -> bool:
    """Return whether a body is the one that was signed; True for a request without signature."""
    claim = request.get(_CLAIM)
    return claim is None or equal_secrets(claim.digest, digest(body))


def _cookie_name(request: web.Request) -> str:
    """Return the cookie's name, with the port that the browser uses."""
    port = (request.headers.get("Host") or "").rpartition(":")[2]
    if port.isascii() and port.isdecimal() and len(port) < 6:
        return f"{COOKIE}_{port}"
    return COOKIE


# --- host names and other sites ------------------------------------------------------------------

UNGUARDED_PATHS = ("/livez", "/readyz")  # Kubernetes probes, which reveal nothing

_CLUSTER_SUFFIXES = (".svc", ".svc.cluster.local")  # Of Kubernetes; nobody can register them


def host_names(names: Iterable[str | None]) -> frozenset[str]:
    """Return the host names that a Host header may contain for this node."""
    return frozenset(
        name.rstrip(".").lower() for name in names if name and name.strip(".") and not is_ip(name)
    ) | {"localhost"}


def refusal_of(
    method: str, path: str, headers: Mapping[str, str], names: frozenset[str], *, guarded: bool
) -> tuple[int, str] | None:
    """Return the HTTP status and why a request is refused before its body is read, or None."""
    if path in UNGUARDED_PATHS:
        return None
    if headers.get("Content-Encoding", "").strip().lower() not in {"", "identity"}:
        return 415, "Content-Encoding: send the body without compression"

    # Is it sent to this node's name? A token replaces this check, and for reading the next one.
    host = headers.get("Host")
    if not guarded and host is not None and not _is_own_name(host, names):
        return 421, (
            f"this node is not known as {host[:100]!a}: call it by its IP address, or set "
            "RAY_AUTH_TOKEN on all nodes, which opens it under any name"
        )

    # May a page of another site send it? Not with the token or its SameSite cookie. If a person
    # follows a link, the page with the link cannot read the answer.
    if method in {"GET", "HEAD"}:
        if guarded:
            return None
        mode = headers.get("Sec-Fetch-Mode", "")
        dest = headers.get("Sec-Fetch-Dest", "")
        if (mode, dest) == ("navigate", "document") and "Origin" not in headers:
            return None
    if not _is_of_own_site(headers, host or ""):
        return 403, "a page of another site may not call this node"
    return None


def _is_of_own_site(headers: Mapping[str, str], host: str) -> bool:
    site = headers.get("Sec-Fetch-Site", "").lower()
    if site:  # set by the browser; a page cannot change it
        return site in {"same-origin", "none"}
    origin = headers.get("Origin")
    return origin is None or origin.partition("://")[2].lower() == host.lower()


def _is_own_name(host: str, names: frozenset[str]) -> bool:
    """Return whether a Host header names this node, by its address or one of its names."""
    if host.startswith("["):
        name = host[1:].partition("]")[0]
    else:
        name = host.partition(":")[0].rstrip(".").lower()
    if is_ip(name) or name in names:
        return True
    in_cluster = name.endswith(_CLUSTER_SUFFIXES)
    return in_cluster and any(name.startswith(f"{known}.") for known in names)
