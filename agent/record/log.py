"""The agent's log: one sentence per line, on stderr and in the run folder, secrets masked."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.base.text import escaped
from agent.record.background import DiskAlarm, Writer
from agent.record.files import appending, rotate
from agent.settings.redact import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from structlog.typing import EventDict, Processor

_COLORS = {"warning": "\033[33m", "error": "\033[31m"}
_MARKS = {"warning": "WARN", "error": "ERROR"}
MOST_BYTES = 32 << 20  # then the log begins anew, and its former part is agent.1.log
_RESET = "\033[0m"
_FOREIGN = ("rich", "better_exceptions", "twisted")


def _logger(redactor: Redactor, node: str, *, as_json: bool) -> Any:  # noqa: ANN401 - structlog's own type is Any
    """Return a logger that returns the line of a sentence."""
    # Imported here since some verbs log nothing: it costs 11 ms after asyncio, and 33 ms more with
    # rich, which structlog 26.1 imports for tracebacks if it does not seem to be missing.
    hidden = [name for name in _FOREIGN if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: missing
    import structlog  # noqa: PLC0415 - see above

    for name in hidden:
        del sys.modules[name]

    # The steps from an event to its line.

    def clean(_logger: object, _method: str, event: EventDict) -> EventDict:
        """Mask secrets, then escape control characters, so that no text forges a line."""
        fields = {**event, "node": node}
        return {name: escaped(redactor.clean(str(text))) for name, text in fields.items()}

    def render(_logger: object, _method: str, event: EventDict) -> str:
        words = (event["timestamp"], event["node"], _MARKS.get(event["level"]), event["event"])
        return " ".join(filter(None, words))

    to_json = structlog.processors.JSONRenderer(ensure_ascii=False)
    stamp = structlog.processors.TimeStamper("iso" if as_json else "%H:%M:%S", utc=True)
    to_line: Processor = to_json if as_json else render
    return structlog.wrap_logger(
        structlog.ReturnLogger(),
        processors=[structlog.processors.add_log_level, stamp, clean, to_line],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        context_class=dict,
    ).bind()


# --- where lines go ------------------------------------------------------------------------------


class _Log:
    """Writes lines to stderr, and to a file once it is set."""

    def __init__(self) -> None:
        self._make: Callable[[], Any] = partial(_logger, Redactor(()), "", as_json=False)
        self._logger: Any = None
        self._redactor = Redactor(())
        self._is_colored = False
        trouble = partial(self.stream_trouble, "stderr")
        self._stderr = Writer("stderr", partial(os.dup, 2), lost=self._lost, trouble=trouble)
        self.disk = DiskAlarm(self.say)
        self._file_writer = self.disk.follow(Writer("agent.log", lost=self._lost))

    def configure(
        self, style: str, environ: Mapping[str, str], redactor: Redactor, node: str
    ) -> None:
        """Set the style: json for machines; color only on a terminal, and never with NO_COLOR."""
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._is_colored = style == "auto" and terminal and not environ.get("NO_COLOR")
        self._make = partial(_logger, redactor, node, as_json=style == "json")
        self._logger = None
        self._redactor = redactor

    def mask(self, text: str) -> str:
        """Mask this node's secrets in a text, as in a line of the log."""
        return self._redactor.clean(text)

    def set_file(self, path: Path | Callable[[], Path]) -> None:
        """Write the log to a file too, including the lines so far; the writer thread opens it."""

        def opened() -> int:
            where = path() if callable(path) else path
            rotate(where, MOST_BYTES)
            return appending(where)()

        self._file_writer.open(opened, MOST_BYTES)

    def say(self, sentence: str, level: str = "info") -> None:
        """Log one sentence; return at once."""
        line = self._render(sentence, level)
        color = _COLORS.get(level) if self._is_colored else None
        self._stderr.put(f"{color}{line}{_RESET}" if color else line)
        self._file_writer.put(line)

    def _render(self, sentence: str, level: str) -> str:
        self._logger = self._logger or self._make()
        return str(getattr(self._logger, level)(sentence))

    def _lost(self, count: int) -> str:
        return self._render(f"{count} lines of this log were lost here", "warning")

    def stream_trouble(self, name: str, why: str) -> None:
        """Log that a stream cannot be written, or by '' that it can again."""
        what = f"cannot be written: {why}" if why else "can be written again"
        self.say(f"{name} {what}", "warning")


_log = _Log()
disk_alarm: DiskAlarm = _log.disk  # the alarm of the run folder's disk, shared by all its writers
configure = _log.configure
log_to_file = _log.set_file
mask = _log.mask
say = _log.say
stream_trouble = _log.stream_trouble
