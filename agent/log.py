"""The agent's own log: one sentence a line, on stderr and in the run folder, secrets masked."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

import structlog

from agent.redact import Redactor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from structlog.typing import EventDict, WrappedLogger

_COLOURS = {"warning": "\033[33m", "error": "\033[31m", "info": "", "debug": "\033[2m"}
_RESET = "\033[0m"


class _Output:
    """Where lines go: stderr always, a file as soon as there is one."""

    def __init__(self) -> None:
        self.file: TextIO | None = None
        self.redactor = Redactor(())
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


class _Printer:
    """The last processor's target, as structlog wants it."""

    def msg(self, shown: str, kept: str) -> None:
        _output.emit(shown, kept)

    debug = info = warning = error = msg


def configure(style: str, environ: Mapping[str, str], redactor: Redactor, node: str) -> None:
    """Set the style: json for machines; colour only on a terminal, and never with NO_COLOR."""
    coloured = style == "auto" and sys.stderr.isatty() and not environ.get("NO_COLOR")
    _output.redactor = redactor
    json_line = structlog.processors.JSONRenderer(ensure_ascii=False)

    def render(
        logger: WrappedLogger, name: str, event: EventDict
    ) -> tuple[tuple[str, str], dict[str, object]]:
        plain = _plain(event, node)
        if style == "json":
            text = str(json_line(logger, name, {**event, "node": node}))
            return (text, text), {}
        level = str(event.get("level", "info"))
        colour = _COLOURS.get(level, "") if coloured else ""
        return (f"{colour}{plain}{_RESET}" if colour else plain, plain), {}

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(
                fmt="iso" if style == "json" else "%H:%M:%S", utc=True
            ),
            render,
        ],
        logger_factory=lambda *_: _Printer(),
        cache_logger_on_first_use=False,
    )


def _plain(event: EventDict, node: str) -> str:
    mark = {"warning": "WARN ", "error": "ERROR "}.get(str(event.get("level")), "")
    return f"{event.get('timestamp')} {node} {mark}{event['event']}"


def keep_in(path: Path) -> None:
    """Write the log to a file from now on, with what was said before."""
    try:
        _output.file = path.open("a", encoding="utf-8")
    except OSError as error:
        say(f"{path} cannot be written: {error.strerror}", "warning")
        return
    _output.file.writelines(_output.early)
    _output.file.flush()
    _output.early.clear()


def say(sentence: str, level: str = "info") -> None:
    """Log one sentence."""
    getattr(structlog.get_logger(), level)(sentence)
