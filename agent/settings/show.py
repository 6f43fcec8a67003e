"""The table of variables, as `env` prints it and as the README shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.settings.model import SECRETS, VARIABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings.load import Loaded


def current(name: str, loaded: Loaded, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return a variable's current value, masked where secret, and where it came from."""
    origin = loaded.origins.get(name, "default")
    if origin.startswith("default"):
        return "", origin
    if name in SECRETS:
        return "********", origin
    return environ[name], origin


def text_table(loaded: Loaded, environ: Mapping[str, str]) -> str:
    """Render the table for a terminal: one variable, its value and origin, then its meaning."""
    lines = []
    for name, about in VARIABLES.items():
        value, origin = current(name, loaded, environ)
        now = f"{name}={value}" if value else name
        lines.append(f"{now}  [{origin}]")
        lines.append(f"    {about.meaning}; default: {about.shown or 'none'}")
    return "\n".join(lines)


def markdown_table() -> str:
    """Render the table for the README."""
    rows = ["| variable | meaning | default |", "| --- | --- | --- |"]
    for name, about in VARIABLES.items():
        extra = " (or `RAY_AUTH_TOKEN_PATH`)" if name == "RAY_AUTH_TOKEN" else ""
        rows.append(f"| `{name}`{extra} | {about.meaning} | {about.shown} |")
    return "\n".join(rows)
