"""`Cause`: what a row states about an error, for a user."""

from __future__ import annotations

from agent.base.value import Value


class Cause(Value):
    """The name of a cause, one sentence without a full stop, and what to do about it."""

    name: str
    sentence: str
    remedy: str
