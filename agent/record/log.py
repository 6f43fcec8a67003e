"""The agent's own log: one sentence a line, on stderr and in the run folder, secrets masked."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TextIO

from agent.settings.redact import Redactor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_COLOURS = {"warning": "\033[33m", "error": "\033[31m"}
_MARKS = {"warning": "WARN", "error": "ERROR"}
_RESET = "\033[0m"


@dataclass(frozen=True)
class _Style:
    """How a line looks, to a reader and in the file."""

    node: str = ""
    as_json: bool = False
    coloured: bool = False

    def render(self, sentence: str, level: str) -> tuple[str, str]:
        if self.as_json:
            now = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
            fields = {"event": sentence, "level": level, "timestamp": now, "node": self.node}
            line = json.dumps(fields, ensure_ascii=False)
            return line, line
        now = time.strftime("%H:%M:%S", time.gmtime())
        plain = " ".join(filter(None, (now, self.node, _MARKS.get(level), sentence)))
        colour = _COLOURS.get(level, "") if self.coloured else ""
        return (f"{colour}{plain}{_RESET}" if colour else plain), plain


class _Output:
    """Where lines go: stderr always, a file as soon as there is one."""

    def __init__(self) -> None:
        self.file: TextIO | None = None
        self.redactor = Redactor(())
        self.style = _Style()
        self.early: list[str] = []

    def emit(self, shown: str, kept: str) -> None:
        with suppress(OSError, ValueError):  # a reader that left must not stop the job
            sys.stderr.write(self.redactor.clean(shown) + "\n")
            sys.stderr.flush()
        line = self.redactor.clean(kept) + "\n"
        if self.file is None:
            self.early.append(line)
            return
        try:
            self.file.write(line)
            self.file.flush()
        except OSError as error:
            self.file = None
            self.emit(f"agent.log cannot be written any more: {error.strerror}", kept)


_output = _Output()


def configure(style: str, environ: Mapping[str, str], redactor: Redactor, node: str) -> None:
    """Set the style: json for machines; colour only on a terminal, and never with NO_COLOR."""
    coloured = style == "auto" and sys.stderr.isatty() and not environ.get("NO_COLOR")
    _output.redactor = redactor
    _output.style = _Style(node, as_json=style == "json", coloured=coloured)


def keep_in(path: Path) -> None:
    """Write the log to a file from now on, with what was said before."""
    try:
        _output.file = path.open("a", encoding="utf-8", errors="backslashreplace")
        _output.file.writelines(_output.early)
        _output.file.flush()
    except OSError as error:
        _output.file = None
        say(f"{path} cannot be written: {error.strerror}", "warning")
        return
    _output.early.clear()


def say(sentence: str, level: str = "info") -> None:
    """Log one sentence."""
    _output.emit(*_output.style.render(sentence, level))
