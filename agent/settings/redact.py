"""The one place through which text passes that might carry a secret."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from agent.settings.model import SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.settings import Settings

T = TypeVar("T")
MASK = "********"
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:$|_)", re.IGNORECASE
)
_SHORTEST = 6
"""Shorter values are no secrets worth the name, and would tear holes into ordinary text."""


def looks_secret(name: str) -> bool:
    """Say whether a variable's name tells of a secret."""
    return bool(_SECRET_NAME.search(name)) and not name.endswith(("_PATH", "_FILE"))


class Redactor:
    """Replaces every secret that it was told of."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = {s for s in secrets if len(s) >= _SHORTEST}
        self._pattern = (
            re.compile("|".join(re.escape(s) for s in sorted(found, key=len, reverse=True)))
            if found
            else None
        )

    def clean(self, text: str) -> str:
        """Mask every known secret in a text."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def clean_fields(self, value: T) -> T:
        """Mask every known secret in the texts of a dataclass, nested ones included."""
        if self._pattern is None or not is_dataclass(value) or isinstance(value, type):
            return value
        changed = {}
        for field in fields(value):
            old = getattr(value, field.name)
            new = self.clean(old) if type(old) is str else self.clean_fields(old)
            if new != old:
                changed[field.name] = new
        return replace(value, **changed) if changed else value


def redactor_for(environ: Mapping[str, str], settings: Settings | None) -> Redactor:
    """Collect the secrets of an environment: the known ones, and any whose name says so."""
    found = {text for name, text in environ.items() if looks_secret(name) or name in SECRETS}
    if settings is not None:
        held = (settings.wandb_api_key, settings.ray_auth_token)
        found |= {s.reveal() for s in held if s is not None}
    return Redactor(found)
