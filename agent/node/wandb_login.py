"""Whether `wandb login` was here: W&B's own ways to credentials, without importing it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOST = "api.wandb.ai"
_LARGEST = 1 << 20
_BASE_URL = re.compile(r"^\s*base_url\s*[=:]\s*(\S+)", re.MULTILINE)


def has_login(environ: Mapping[str, str]) -> bool:
    """Say whether W&B finds credentials here; a file that cannot be read counts as none."""
    token = environ.get("WANDB_IDENTITY_TOKEN_FILE")
    if token and _text(Path(token)).strip():
        return True
    home = Path(environ.get("HOME") or "/")
    named = environ.get("NETRC")
    files = [_expanded(named, home)] if named else [home / ".netrc", home / "_netrc"]
    texts = [text for text in map(_text, files) if text]
    return bool(texts) and _has_password(texts[0], _host(environ, home))


def _host(environ: Mapping[str, str], home: Path) -> str:
    """Return the server's name: the environment's, that of `wandb login --host`, W&B's own."""
    folder = environ.get("WANDB_CONFIG_DIR")
    config = _expanded(folder, home) if folder else home / ".config" / "wandb"
    kept = _BASE_URL.search(_text(config / "settings"))
    url = environ.get("WANDB_BASE_URL") or (kept[1] if kept else "")
    try:
        return urlsplit(url if "://" in url else f"//{url}").hostname or _HOST
    except ValueError:
        return _HOST


def _expanded(path: str, home: Path) -> Path:
    return home / path[2:] if path.startswith("~/") else Path(path)


def _text(file: Path) -> str:
    try:
        if not file.is_file():  # a pipe would be waited for
            return ""
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_LARGEST)
    except (OSError, ValueError):
        return ""


def _has_password(text: str, host: str) -> bool:
    """Read netrc's words as far as they are in order: a broken line is no reason to fail."""
    words = [w for line in text.splitlines() for w in line.partition(" #")[0].split()]
    ours = False
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in {"machine", "default"}:
            ours = word == "machine" and following.strip('"').lower() == host.lower()
        elif word == "password" and ours and following not in {"", "machine", "default"}:
            return True
    return False
