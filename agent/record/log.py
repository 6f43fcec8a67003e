"""The agent's log: one sentence per line, on stderr and in the run folder, secrets masked.

A line for people begins with the time and a mark: `✓` something is done, `!` a warning, `✗` an
error. A line about a subject has columns: the subject, what is known of it, and how long it took.
The file in the run folder has more than stderr: lines at the level `debug`, which stderr has with
AGENT_LOG=console and json only. At a terminal the last
line of stderr may be a wait that is drawn again and again; it is never in the file.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.base.text import duration_text, escaped
from agent.record.background import DiskAlarm, Writer
from agent.record.files import appending, rotate
from agent.settings.redact import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from structlog.typing import EventDict, Processor

_COLORS = {"warning": "\033[33m", "error": "\033[31m"}
_MARKS = {"done": "✓", "warning": "!", "error": "✗"}
_GREEN = "\033[32m"
_CLOCK = "%H:%M:%S"
_SUBJECT = 14  # columns of a subject, at least
_DETAIL = 34  # columns of what is known of it, if a duration follows
_USUAL_COLUMNS = 80
_ERASE = b"\r\033[K"
MOST_BYTES = 32 << 20  # then the log begins anew, and its former part is agent.1.log
_RESET = "\033[0m"
_BOLD = "\033[1m"
_DATE = "%Y-%m-%d"


def _logger(redactor: Redactor, node: str, *, as_json: bool, names_node: bool) -> Any:  # noqa: ANN401 - structlog's own type is Any
    """Return a logger that returns the line of a sentence, in JSON always with the node's name."""
    import structlog  # noqa: PLC0415 - it brings rich, 50 ms that verbs without a log do not need

    # The steps from an event to its line.

    def clean(_logger: object, _method: str, event: EventDict) -> EventDict:
        """Mask secrets, then escape control characters, so that no text forges a line."""
        fields = {**event, "node": node}
        return {
            name: escaped(redactor.clean(text)) if isinstance(text, str) else text
            for name, text in fields.items()
        }

    def render(_logger: object, _method: str, event: EventDict) -> str:
        return _line(event, names_node=names_node)

    to_json = structlog.processors.JSONRenderer(ensure_ascii=False)
    stamp = structlog.processors.TimeStamper("iso" if as_json else _CLOCK, utc=True)
    to_line: Processor = to_json if as_json else render
    return structlog.wrap_logger(
        structlog.ReturnLogger(),
        processors=[structlog.processors.add_log_level, stamp, clean, to_line],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        context_class=dict,
    ).bind()


def _line(event: EventDict, *, names_node: bool) -> str:
    """Return a line for people: time, node, mark, and the sentence or its columns."""
    subject = event.get("subject")
    text = event["event"]
    if subject:
        text = f"{subject:<{_SUBJECT}} {text}"
    if event.get("seconds") is not None:
        text = f"{text:<{_SUBJECT + _DETAIL}} {duration_text(event['seconds']):>6}"
    mark = event["mark"]
    time = event["timestamp"] if event["is_timed"] else " "
    node = event["node"] if names_node else ""
    return " ".join(filter(None, (time, node, mark, text)))


# --- where lines go ------------------------------------------------------------------------------


class _Log:
    """Writes lines to stderr, and to a file once it is set."""

    def __init__(self) -> None:
        self._make: Callable[[], Any] = partial(
            _logger, Redactor(()), "", as_json=False, names_node=False
        )
        self._logger: Any = None
        self._redactor = Redactor(())
        self._is_colored = False
        self._is_json = False
        self._shows_all = False  # stderr gets what else only the file has
        self._date = ""  # of the last line
        self._may_draw = False  # stderr is a terminal whose last line may be drawn again
        self._drawn = False  # the last line of stderr is one that is drawn again
        trouble = partial(self.stream_trouble, "stderr")
        self._stderr = Writer("stderr", partial(os.dup, 2), lost=self._lost, trouble=trouble)
        self.disk = DiskAlarm(self.say)
        self._file_writer = self.disk.follow(Writer("agent.log", lost=self._lost))

    def configure(
        self,
        style: str,
        environ: Mapping[str, str],
        redactor: Redactor,
        node: str,
        *,
        names_node: bool = False,
    ) -> None:
        """Set the style: `json` for machines, `console` for all lines as the file has them.

        Color only with `auto`, on a terminal, and never with NO_COLOR.

        `names_node`: each line for people names the node, whose stream others may share.
        """
        terminal = style == "auto" and sys.stderr is not None and sys.stderr.isatty()
        self._is_json = style == "json"
        self._shows_all = style != "auto"
        self._is_colored = terminal and not environ.get("NO_COLOR")
        self._may_draw = terminal and environ.get("TERM", "dumb") != "dumb"
        self._make = partial(_logger, redactor, node, as_json=self._is_json, names_node=names_node)
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

    def say(  # noqa: PLR0913 - the columns of a line
        self,
        sentence: str,
        level: str = "info",
        *,
        subject: str = "",
        seconds: float | None = None,
        is_timed: bool = True,
        is_last: bool = False,
    ) -> None:
        """Log one sentence, or what is known of a subject and how long it took; return at once.

        Levels are debug, info, done, warning and error; the last line of all has no mark.
        """
        mark = "" if is_last else _MARKS.get(level, " ")
        line = self._render(sentence, level, mark, subject, seconds, is_timed=is_timed)
        if not self._is_json:
            self._say_new_date()
        if level != "debug" or self._shows_all:
            self._write(self._colored(line, level))
        self._file_writer.put(line)

    def say_title(self, sentence: str) -> None:
        """Log the first line of a run, which has the date: those below it need no time."""
        self._date = datetime.now(timezone.utc).strftime(_DATE)
        if self._is_json:
            self.say(sentence)
            return
        now = datetime.now(timezone.utc).strftime(f"{_DATE} {_CLOCK} UTC")
        line = escaped(self._redactor.clean(f"{sentence} · {now}"))
        self._write(f"{_BOLD}{line}{_RESET}" if self._is_colored else line)
        self._file_writer.put(line)

    def draw(self, sentence: str) -> bool:
        """Draw the last line of the terminal anew, '' erases it; return whether it is one."""
        if not self._may_draw or (not sentence and not self._drawn):
            return self._may_draw
        text = b""
        if sentence:
            line = self._render(sentence, "info")
            text = line[: _columns() - 1].encode(errors="replace")
        self._stderr.put_bytes(_ERASE + text)
        self._drawn = bool(sentence)
        return True

    def end_drawing(self) -> None:
        """Draw nothing from now on: other programs write to the terminal, too."""
        self.draw("")
        self._may_draw = False

    def _say_new_date(self) -> None:
        """Log the date before the first line of a day; the first line of the run has its own."""
        now = datetime.now(timezone.utc)
        date = now.strftime(_DATE)
        if self._date and date != self._date:
            line = now.strftime(f"{_DATE} {_CLOCK} UTC")
            self._write(line)
            self._file_writer.put(line)
            self._date = date

    def _write(self, line: str) -> None:
        """Write a line to stderr, in the place of one that is drawn again."""
        self.draw("")
        self._stderr.put(line)

    def _colored(self, line: str, level: str) -> str:
        """Return a line with its color: of what is done, the mark alone."""
        if not self._is_colored:
            return line
        if level == "done":
            mark = _MARKS[level]
            return line.replace(mark, f"{_GREEN}{mark}{_RESET}", 1)
        color = _COLORS.get(level)
        return f"{color}{line}{_RESET}" if color else line

    def _render(  # noqa: PLR0913 - as `say`
        self,
        sentence: str,
        level: str,
        mark: str = " ",
        subject: str = "",
        seconds: float | None = None,
        *,
        is_timed: bool = True,
    ) -> str:
        self._logger = self._logger or self._make()
        log = getattr(self._logger, "info" if level == "done" else level)
        more: dict[str, object] = {}
        if subject:
            more["subject"] = subject
        if seconds is not None:
            more["seconds"] = round(seconds, 1)
        if not self._is_json:
            more |= {"mark": mark, "is_timed": is_timed}
        return str(log(sentence, **more))

    def _lost(self, count: int) -> str:
        return self._render(f"{count} lines of this log were lost here", "warning", "!")

    def stream_trouble(self, name: str, why: str) -> None:
        """Log that a stream cannot be written, or by '' that it can again."""
        what = f"cannot be written: {why}" if why else "can be written again"
        self.say(f"{name} {what}", "warning")


def _columns() -> int:
    """Return the width of the terminal at stderr."""
    try:
        return os.get_terminal_size(2).columns or _USUAL_COLUMNS
    except OSError:
        return _USUAL_COLUMNS


_log = _Log()
disk_alarm: DiskAlarm = _log.disk  # the alarm of the run folder's disk, shared by all its writers
configure = _log.configure
log_to_file = _log.set_file
mask = _log.mask
say = _log.say
say_title = _log.say_title
draw = _log.draw
end_drawing = _log.end_drawing
stream_trouble = _log.stream_trouble
