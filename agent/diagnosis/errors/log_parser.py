"""Parse a log into errors, line by line, in bounded memory and linear time.

1. Prefixes come off; they separate the processes whose output is mixed in one log.
2. Each process is read by itself: a traceback is open until its exception, an exception until a
   line that does not continue it. What it wraps, or was raised from, becomes its cause.
3. What follows an error is counted: ordinary lines of its process, and steps of the training.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict, deque
from collections.abc import Callable  # noqa: TC003 - a NamedTuple's field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from agent.base.text import without_controls
from agent.base.value import Value
from agent.diagnosis.errors import forms
from agent.diagnosis.errors.forms import PROGRESS, any_of, form_of
from agent.diagnosis.errors.last_lines import MOST_KEPT, LastLine
from agent.diagnosis.errors.parsed_error import ErrorKind, LogLevel, ParsedError, TracebackFrame
from agent.diagnosis.errors.prefixes import LONGEST, PrintedLine, read_line, seconds_of
from agent.diagnosis.errors.process_output import (
    HeldError,
    Occurrence,
    ProcessOutput,
    ReleasedError,
    has_any,
)
from agent.diagnosis.errors.roles import has_role, without_role

if TYPE_CHECKING:
    from collections.abc import Iterable

_KERNEL_LINE_AGE = 600.0  # A line of the kernel from so long before a log began is no cause.
_MOST_PROCESSES = 512  # that are open at a time
_MOST_ERRORS = 2_000  # of one log; the first quarter and the last ones
_MOST_STRAYS = 8  # lines of others within a traceback
_LONGEST_JSON = 32_000
_RETRY_WITHIN = 6  # lines
_NEXT_WITHIN = 3  # lines, where it names nothing
_STEPS_THAT_SHOW = 3  # behind an error, that it was overcome
_NATIVE_SOURCES = (".cpp:", ".cc:", ".cu:", ".rs:")
_PLACE_WITHIN = 160  # characters of a line: the source file that a logger states
_WORD = re.compile(r"[A-Za-z]{4,60}")
_SAY_LITTLE = {
    *("entering", "loop", "after", "seconds", "second", "with", "will", "error", "errors", "this"),
    *("from", "that", "next", "time", "attempt", "attempts", "again", "retry", "failed", "failure"),
    *("warning", "info", "remaining", "sleeping", "waiting", "backoff", "secs", "left", "more"),
    *("there", "here", "have", "been", "does", "could", "instead", "using", "anyway"),
}
_HANDLED_SIGNS = ("etry", "all", "kip", "gnor", "rying", "ttempt", "ucceeded", "ecovered")
_PROGRESS_SIGNS = ("step", "loss", "poch", "iteration")
_STEP_SIGNS = ("step", "Step", "iter", "Iter")
_RISEN = 5  # times without a break
_PRINTED_SETTINGS = ("Namespace(", "Error executing job with overrides")
_CELL = ("│", "┃", "║")
_ENDED = re.compile(
    r"Set the environment variable HYDRA_FULL_ERROR|Job '[\w-]{1,80}' failed|Status message: Job"
    r"|srun: error: .{1,200}: (?:Exited with|Killed|Terminated)|Command exited with non-zero"
)
"""Lines of launchers behind the end of a program that failed."""
_JSON_LEVELS = {
    "error": LogLevel.ERROR,
    "err": LogLevel.ERROR,
    "50": LogLevel.ERROR,  # of bunyan and pino
    "fatal": LogLevel.FATAL,
    "critical": LogLevel.FATAL,
    "60": LogLevel.FATAL,
}
_JSON_LEVEL_NAMES = ("level", "severity", "levelname", "lvl", "log.level", "loglevel", "log_level")
_JSON_STACKS = ("exc_info", "exception", "stack_trace", "stack", "traceback", "exc_text")
_JSON_PARTS = ("record", "fields", "jsonPayload", "error", "err", "exception")
"""Objects of a line that hold its message: of loguru, Rust's tracing, cloud loggers, ECS, pino."""
_JSON_LOG = '{"log":"'
"""A line of a container as Docker's logs hold it."""


class Signs(NamedTuple):
    """Which lines a row explains that are not marked as errors: the parser keeps no others."""

    quiet: tuple[str, ...] = ()  # texts of such lines without any word of an error
    may_match: Callable[[str, str, LogLevel], bool] = lambda _printed, _body, _level: False
    explains: Callable[[ParsedError], bool] = lambda _error: False


_NO_SIGNS = Signs()


@lru_cache(maxsize=2)
def _any_sign(quiet: tuple[str, ...]) -> re.Pattern[str]:
    """Return an expression for any sign of an error in a line in small letters."""
    return any_of((*forms.STEMS, *(sign.lower() for sign in quiet)))


class ParsedLog(Value):
    """The errors of a log in the order of their lines."""

    occurrences: tuple[Occurrence, ...] = ()
    last_step: int = -1  # the number of the last line that a training step prints
    last_end: int = -1  # that of the last line that states the end of a program
    last_lines: tuple[LastLine, ...] = ()  # those that are no part of an error


class LogParser:
    """Reads the lines of one log; `result` may be called at any time."""

    def __init__(
        self,
        node: str = "",
        log: str = "",
        signs: Signs = _NO_SIGNS,
        most: int = _MOST_ERRORS,
        began: float | None = None,
    ) -> None:
        """`began` is when the log began at the earliest, in seconds since the year did."""
        self.changes = 0  # grows with each error, and with what shows more about one
        self._most_first = most // 4
        self._node = node
        self._log = log
        self._signs = signs
        self._any_sign = _any_sign(signs.quiet)
        self._processes: OrderedDict[tuple[str, ...], ProcessOutput] = OrderedDict()
        self._first: list[ReleasedError] = []
        self._last: deque[ReleasedError] = deque(maxlen=most - most // 4)
        self._number = -1
        self._last_step = -1
        self._steps = 0  # how many the log has shown
        self._steps_at_error = 0  # the same when the newest error was released
        self._rising_count = -1  # the last number of a step in a user's own words
        self._risen = 0  # how often it has risen without a break
        self._last_end = -1
        self._bar_count = 0  # of the newest progress bar
        self._bar_number = -1  # of its line
        self._last_lines: deque[LastLine] = deque(maxlen=MOST_KEPT)
        self._stamp = ""
        self._began = began  # the first time that a program states

    @property
    def steps(self) -> int:
        """Return how many steps were shown."""
        return self._steps

    @property
    def lines(self) -> int:
        """Return how many lines were read."""
        return self._number + 1

    @property
    def is_open(self) -> bool:
        """Return whether the next line may belong to an error."""
        return any(process.is_open or process.is_chained for process in self._processes.values())

    @property
    def is_within(self) -> bool:
        """Return whether an error is known to go on: a process has just printed a part of it."""
        return any(
            process.is_within and self._number - process.previous <= _MOST_STRAYS
            for process in self._processes.values()
        )

    @property
    def has_continued(self) -> bool:
        """Return whether the last line belongs to an error of an earlier one."""
        held = [process.held for process in self._processes.values() if process.held is not None]
        return any(error.last == self._number > error.error.number for error in held)

    def read(self, lines: Iterable[str]) -> None:
        """Read lines, which may hold control characters."""
        for line in lines:
            self.feed(line)

    def feed(self, printed: str) -> None:
        """Read one line."""
        # What a return overwrote is not shown at a terminal.
        self._number += 1
        shown = printed if len(printed) <= _LONGEST_JSON else printed[:_LONGEST_JSON]
        if shown.startswith(_JSON_LOG):
            shown = _line_of_docker(shown)
        if not shown.isprintable():
            shown = without_controls(shown.rstrip("\r\n").rpartition("\r")[2])
        line = read_line(shown)
        if line.stamp:
            self._stamp = line.stamp
            if self._began is None and line.stamp[0].isdigit():  # not the kernel's own form
                self._began = seconds_of(line.stamp)
        process = self._process(line.source)
        process.stamp = line.stamp or process.stamp
        body = line.body
        if not body or body.isspace():
            process.end_of_message()
            return

        # Does it show a step? Then what came before has been overcome.
        is_step = has_any(body, _PROGRESS_SIGNS) and PROGRESS.search(body)
        if is_step:
            self._steps += 1
            self._last_step = self._number
            self._note_step()
            process.quoted = 0
        else:
            self._read_bar(body)
            self._read_rising(body)
        if body[0] in "SJEsC" and _ENDED.match(body):
            self._last_end = self._number
            self.changes += 1
        self._mark_handled(process, body)
        process.read_quotes(line)
        if not self._read_error(process, line, shown) and not is_step:
            process.count(line)
            if not process.quoted:
                self._last_lines.append(LastLine(self._number, line, self._stamp))
        process.before.append(body)
        process.previous_level = line.level if _may_announce(line) else LogLevel.UNSTATED
        process.previous = self._number

    def close(self) -> None:
        """End all that is open: the log has ended."""
        for process in self._processes.values():
            self._release(process)

    def result(self) -> ParsedLog:
        """Return what was read so far."""
        holding = [process for process in self._processes.values() if process.held is not None]
        open_ = [self._record(one, one.held) for one in holding if one.held is not None]
        records = sorted(
            (*self._first, *self._last, *open_), key=lambda record: record.error.number
        )
        found = [
            record.occurrence(self._steps, is_stale=self._is_stale(record.error))
            for record in records
        ]
        last = tuple(self._last_lines)
        return ParsedLog(tuple(found), self._last_step, self._last_end, last)

    # --- processes -------------------------------------------------------------------------------

    def _process(self, source: tuple[str, ...]) -> ProcessOutput:
        process = self._processes.get(source)
        if process is None:
            process = ProcessOutput()
            self._processes[source] = process
            if len(self._processes) > _MOST_PROCESSES:
                _, oldest = self._processes.popitem(last=False)
                self._release(oldest)
        elif source:
            self._processes.move_to_end(source)
        return process

    def _read_rising(self, body: str) -> None:
        """Read a number of a step in a user's own words, which shows one once many have risen."""
        shown = forms.LIKE_PROGRESS.search(body) if has_any(body, _STEP_SIGNS) else None
        if shown is None or int(shown["count"]) == self._rising_count:
            return
        has_risen = int(shown["count"]) > self._rising_count
        self._rising_count = int(shown["count"])
        self._risen = self._risen + 1 if has_risen else 0
        if self._risen >= _RISEN:
            self._steps += 1
            self._last_step = self._number
            self._note_step()

    def _note_step(self) -> None:
        """Count a step that may show that an error was overcome: later ones show no more."""
        is_recent = self._steps - self._steps_at_error <= _STEPS_THAT_SHOW
        self.changes += bool(self._first) and is_recent

    def _read_bar(self, body: str) -> None:
        """Read a progress bar of the training, which shows a step once it has moved on twice.

        The last one is often printed once more behind the exception that ended the training.
        """
        shown = forms.BAR.search(body) if "loss=" in body else None
        if shown is None:
            return
        count = int(shown["count"])
        if count > self._bar_count:
            self._steps += 1
            self._last_step = max(self._last_step, self._bar_number)
            self._bar_number = self._number
            self._note_step()
        if count > self._bar_count or count <= 1:  # another epoch begins anew
            self._bar_count = count

    def _mark_handled(self, process: ProcessOutput, body: str) -> None:
        """Mark an error if this line announces another try of what failed."""
        newest = process.held or process.newest
        if newest is None or self._number - newest.last > _RETRY_WITHIN:
            return
        if not has_any(body, _HANDLED_SIGNS) or not has_role("another try", body[:400]):
            return
        if body.startswith(forms.HARMLESS_BEFORE):
            return  # it is about the exception below it
        if _is_about(body, newest.error, is_next=self._number - newest.last <= _NEXT_WITHIN):
            newest.is_retried = True

    # --- errors ----------------------------------------------------------------------------------

    def _read_error(self, process: ProcessOutput, line: PrintedLine, shown: str) -> bool:
        """Read a line as part of an error; return False for an ordinary line."""
        body = line.body
        is_header = forms.HEADER in body and forms.HEADER_LINE.match(body) is not None
        is_anew = is_header and bool(process.frames or process.strays)  # the former was cut off
        if process.is_open and not is_anew and self._read_traceback(process, line):
            return True

        # Does it belong to the error before it, or begin a traceback?
        if process.held is not None and any(text in body for text in forms.CHAINED):
            process.is_chained = True
            return True
        if is_header or self._opens(body, process):
            self._open(process, line)
            return True
        if self._continues(process, line):
            return True

        # Is it an error by itself?
        if line.level < LogLevel.ERROR and not self._may_be_an_error(body):
            self._release(process)
            return False
        if body[0] == "{" or body.startswith("[{"):
            self._release(process)
            return self._read_json(process, line, shown)
        if body.startswith(forms.HARMLESS_BEFORE):
            self._release(process)
            return True
        return self._read_form(process, line)

    def _may_be_an_error(self, body: str) -> bool:
        """Return whether a line without an error's level has words of one, or a row's."""
        if self._any_sign.search(body.lower()) is None:
            return False
        return forms.is_about_an_error(body) or has_any(body, self._signs.quiet)

    def _opens(self, body: str, process: ProcessOutput) -> bool:
        """Return whether a traceback begins here without a header: with a frame."""
        if 'File "' in body and forms.FRAME.match(_without_gutter(body)):
            return True
        if "ray::" not in body[:120] or forms.PROCESS.search(body) is None:
            return False
        return body.startswith("Unhandled error") or (
            process.held is not None and (process.held.is_wrapper or process.is_chained)
        )

    def _open(self, process: ProcessOutput, line: PrintedLine) -> None:
        """Begin a traceback; its level is that of the line that announces it."""
        if process.held is not None and not process.is_chained and not process.held.is_wrapper:
            self._release(process)
        process.is_open = True
        process.frames = []
        process.indent = 0
        process.strays = 0
        process.opened = tuple(process.before)
        level = line.level
        is_behind = process.previous == self._number - 1 and bool(process.before)
        if is_behind and level is LogLevel.UNSTATED:
            is_announced = forms.ANNOUNCES.search(process.before[-1][:400]) is not None
            level = min(level, process.previous_level) if is_announced else level
        process.announced = process.before[-1] if level is not line.level else ""
        process.level = level
        self._read_traceback(process, line)

    def _read_traceback(self, process: ProcessOutput, line: PrintedLine) -> bool:
        """Read a line of an open traceback; return False if it is another process's."""
        body = _without_gutter(line.body)
        frame = forms.FRAME.match(body) or forms.BOX_FRAME.search(body)
        indent = len(body) - len(body.lstrip(" "))
        if frame is not None:
            process.add_frame(frame)
            process.indent = indent
            process.strays = 0
            return True
        place = forms.PROCESS.search(body) if "ray::" in body else None
        if place is not None and body.startswith(("ray::", "Unhandled error")):
            process.place = (place["actor"], place["pid"], place["ip"] or "")
            return True
        if body[0] in _CELL:
            _, marked, code = body.partition("❱")
            if marked:
                process.add_code(code.partition("│")[2].strip("│ "))
            return True
        text = body.strip()
        is_end = 0 < indent < process.indent and forms.LIKE_A_TYPE.match(text) is not None
        is_code = body[0] in " \t^~" and not is_end
        if forms.HEADER in body or is_code or forms.SEPARATOR.match(body):
            process.add_code(body)
            return True

        # Its last line is the exception, which stands before the frames.
        body = text if is_end else body
        head = forms.HEAD.match(body)
        if head is not None and _is_exception(head, body, process.frames):
            self._complete(process, line, head)
            return True
        process.strays += 1
        if process.strays > _MOST_STRAYS:
            process.is_open = False
            self._release(process)
        return False

    def _complete(self, process: ProcessOutput, line: PrintedLine, head: re.Match[str]) -> None:
        """End a traceback with its exception, and join it to what it wraps or was raised from."""
        message = head["message"] or ""
        place = forms.PROCESS.match(message)
        is_wrapper = place is not None or head["type"].endswith(("RayTaskError", "SetupError"))
        is_wrapper = is_wrapper or forms.PASSED_ON.match(message) is not None
        is_wrapper = is_wrapper or head["type"].endswith("CheckpointException")
        error = self._error(process, line, ErrorKind.PYTHON)
        type_ = f"{head['type']}({head['inner']})" if head["inner"] else head["type"]
        level = process.level
        is_other = _names_another(process.announced, head["type"]) or _is_uncaught(process.frames)
        if level is LogLevel.UNSTATED or (process.announced and is_other):
            level = LogLevel.ERROR
        if head["type"].endswith("Warning"):
            level = LogLevel.WARNING
        error = replace(
            error,
            line=_without_gutter(line.body).strip(),
            type=type_,
            message=message,
            frames=tuple(process.frames),
            level=level,
            before=process.opened or tuple(process.before),
        )
        if process.place is not None:
            actor, pid, ip = process.place
            error = replace(error, actor=error.actor or actor, pid=int(pid), ip=error.ip or ip)
        if place is not None:
            ip = place["ip"] or error.ip
            error = replace(error, actor=place["actor"], pid=int(place["pid"]), ip=ip)
        process.is_open = False
        process.frames = []
        process.place = None

        held = process.held
        self.changes += 1
        if held is None:
            process.held = self._hold(process, error, is_wrapper=is_wrapper)
        elif process.is_chained:
            if held.is_wrapper and held.depth:  # the chain goes on inside of what is wrapped
                held.chain_inner(error)
            else:
                held.raise_from(error, is_wrapper=is_wrapper)
        else:
            held.wrap(error, is_wrapper=is_wrapper)
        process.is_chained = False
        if process.held is not None:
            process.held.last = self._number

    def _continues(self, process: ProcessOutput, line: PrintedLine) -> bool:
        """Return whether a line continues the message of the error before it, or its stack."""
        held = process.held
        body = line.body
        if held is None:
            return False
        is_stack = any(
            form.match(body) for form in (forms.NATIVE_FRAME, forms.JAVA_FRAME, forms.SEPARATOR)
        )
        is_reason = self._is_native_message(held, line) or held.takes_reason(body)
        if is_stack or is_reason or held.continues(line):
            held.last = self._number
            self.changes += not is_stack
            return True
        return False

    def _is_native_message(self, held: HeldError, line: PrintedLine) -> bool:
        """Take the message below `terminate called after throwing an instance of`."""
        body = line.body
        if held.error.kind is not ErrorKind.CPP or "what():" not in body[:40]:
            return False
        message = body.partition("what():")[2].strip()
        shown = replace(held.error, line=body.strip(), message=message, printed=line.printed)
        held.error = replace(shown, number=self._number)
        return True

    def _read_form(self, process: ProcessOutput, line: PrintedLine) -> bool:
        """Read a line that is an error by itself."""
        body = line.body
        for words in _PRINTED_SETTINGS:
            body = body.partition(words)[0]
        if process.held is None and process.repeats(body, self._number, self._steps):
            return True

        # Has it the form of an error, and does it belong to the one before it?
        form = None
        if body and body[0] not in _CELL:
            form = form_of(body, line.level)
        is_joined = process.is_chained or (form is not None and form.is_inner)
        is_inner = form is not None and is_joined and process.held is not None
        if not is_inner:
            self._release(process)
        if form is None:
            return False

        # A plain line without a level is one only where a row of causes explains it.
        is_plain = form.kind is ErrorKind.PLAIN
        is_weak = form.level <= LogLevel.UNSTATED
        is_unmarked = is_plain and is_weak
        level = form.level if line.level is LogLevel.UNSTATED else line.level
        if is_unmarked and (_is_data(body) or not self._signs.may_match(line.printed, body, level)):
            return False

        error = self._error(process, line, form.kind)
        if form.kind in _ALWAYS_ERRORS:
            level = max(level, LogLevel.ERROR)
        error = replace(
            error, line=body.strip(), type=form.type, message=form.message or body, level=level
        )
        if is_unmarked and not self._signs.explains(error):
            return False

        # An inner error goes into the one before it; another one is held until it has ended.
        if is_inner and process.held is not None:
            if process.is_chained:
                process.held.raise_from(error, is_wrapper=False)
                process.is_chained = False
            else:
                process.held.wrap(error, is_wrapper=False)
            return True
        is_wrapper = error.type.endswith("RayTaskError")
        process.held = self._hold(process, error, is_wrapper=is_wrapper)
        self.changes += 1
        process.held.is_ended = form.kind not in {ErrorKind.PYTHON, ErrorKind.CPP, ErrorKind.JAVA}
        if process.held.is_ended:
            self._release(process)
        return not is_unmarked

    def _read_json(self, process: ProcessOutput, line: PrintedLine, shown: str) -> bool:
        """Read a log line in JSON; the traceback in it is one of its own."""
        # Is it an object with the level of an error?
        at = shown.find("{")
        if at < 0 or not any(f'"{name}"' in shown for name in _JSON_LEVEL_NAMES):
            return False
        try:
            data = json.loads(shown[at:])
        except (ValueError, RecursionError):
            return False
        if not isinstance(data, dict):
            return False
        data = _with_parts(data)
        stated = next((data[name] for name in _JSON_LEVEL_NAMES if name in data), "")
        if isinstance(stated, dict):  # loguru
            stated = stated.get("name", "")
        level = _JSON_LEVELS.get(str(stated).lower())
        if level is None:
            return False

        # What it says: message, stack, and an error beside the message.
        message = _text(data, "message", "msg", "event", "error")
        stack = _text(data, *_JSON_STACKS)
        if forms.HEADER in message:
            stack = stack or message
            message = message.partition("\n")[0]
        below = ""
        why = _text(data, "error", "err")
        if why and why not in message and not stack:
            below = f"\n{why}"

        self._release(process)
        error = self._error(process, line, ErrorKind.JSON)
        message = message[:LONGEST]
        error = replace(error, line=message, message=f"{message}{below[:LONGEST]}", level=level)

        # The last error of its stack is the cause.
        if stack:
            inner = LogParser(self._node, self._log)
            inner.read(stack.split("\n")[:400])
            inner.close()
            inside = inner.result().occurrences
            if inside:
                wrapped = replace(inside[-1].error, number=self._number, printed=error.printed)
                error = replace(error, cause=wrapped)

        process.held = self._hold(process, error, is_wrapper=False)
        self._release(process)
        return True

    def _error(self, process: ProcessOutput, line: PrintedLine, kind: ErrorKind) -> ParsedError:
        """Return an error with the place of a line."""
        return ParsedError(
            kind,
            line.body.strip(),
            printed=line.printed,
            before=tuple(process.before),
            node=self._node,
            log=self._log,
            number=self._number,
            time=seconds_of(line.stamp or process.stamp),
            rank=line.rank,
            pid=line.pid,
            actor=line.actor,
            ip=line.ip,
            repeated=line.repeated,
        )

    def _release(self, process: ProcessOutput) -> None:
        """Keep an error that is whole."""
        held = process.held
        process.held = None
        process.is_chained = False
        if held is None:
            return
        record = self._record(process, held)
        process.newest = record
        self._steps_at_error = self._steps
        self.changes += 1
        if len(self._first) < self._most_first:
            self._first.append(record)
        else:
            self._last.append(record)

    def _record(self, process: ProcessOutput, held: HeldError) -> ReleasedError:
        """Return the error that a process holds, with the process's state."""
        error = held.whole()
        is_loud = error.level >= LogLevel.UNSTATED
        printed = error.printed[:600]
        is_retried = is_loud and has_any(printed.lower(), _HANDLED_SIGNS)
        is_retried = is_retried and has_role("another try", printed)
        record = ReleasedError(held, process)
        record.is_retried = held.is_retried or is_retried
        return record

    def _hold(self, process: ProcessOutput, error: ParsedError, *, is_wrapper: bool) -> HeldError:
        """Return an error to be held, with whether it stands in a text."""
        is_quoted = process.quoted > 0
        held = HeldError(error, is_wrapper=is_wrapper, last=self._number, is_quoted=is_quoted)
        held.steps = self._steps
        above = error.before[-1] if error.before else ""
        held.is_harmless = above.startswith(forms.HARMLESS_BEFORE) and _is_ignored(above, error)
        return held

    def _is_stale(self, error: ParsedError) -> bool:
        """Return whether the kernel printed it long before the log begins."""
        if error.kind not in _OF_KERNEL or self._began is None:
            return False
        stated = seconds_of(read_line(error.printed).stamp)  # its own time, none of a line before
        return stated is not None and stated < self._began - _KERNEL_LINE_AGE


def _names_another(announced: str, type_: str) -> bool:
    """Return whether a logger's line states an exception, and another one than is printed below."""
    named = forms.NAMED_TYPES.findall(announced[:400])
    return bool(named) and type_.rpartition(".")[2] not in named


def _is_uncaught(frames: list[TracebackFrame]) -> bool:
    """Return whether a traceback begins in a program, not in a package: no logger prints it."""
    first = frames[0] if frames else None
    begins = {"<module>", "_run_module_as_main", "_run_code"}
    return first is not None and first.function in begins and "-packages/" not in first.file


def _is_ignored(above: str, error: ParsedError) -> bool:
    """Return whether an exception is the one that Python ignored in the function of a line above.

    Its traceback begins in that function: one of something else may be printed just behind.
    """
    named = forms.IGNORED_IN.search(above[:400])
    if named is None:
        return True
    return bool(error.frames) and error.frames[0].function.rpartition(".")[2] == named["function"]


def _is_about(body: str, error: ParsedError, *, is_next: bool) -> bool:
    """Return whether a line about another try names what failed, or names nothing else."""
    words = _words(without_role("another try", body[:400]))
    if not words:
        return is_next
    of_error: set[str] = set()
    for part in error.chain():
        of_error |= _words(part.line)
        for frame in part.frames:
            of_error |= _words(f"{frame.function} {frame.code}")
    common = len(words & of_error)
    return 3 * common >= 2 * len(words) and (is_next or common > 1)


def _words(text: str) -> set[str]:
    """Return the words of a text that name something."""
    return {word.lower() for word in _WORD.findall(text)} - _SAY_LITTLE


def _may_announce(line: PrintedLine) -> bool:
    """Return whether a traceback below a line may be its own.

    C++ prints none of Python's, and loggers print none with what they only inform about.
    """
    if line.level is not LogLevel.WARNING:
        return line.level > LogLevel.WARNING
    return not has_any(line.printed[:_PLACE_WITHIN], _NATIVE_SOURCES)


def _is_data(body: str) -> bool:
    """Return whether a line that is not marked as an error shows data, or only points elsewhere."""
    is_value = body[0] in "{'\"" or body.startswith(("['", '["', "[{"))
    return is_value or "error_file:" in body or "To enable traceback" in body


_OF_KERNEL = {ErrorKind.KERNEL, ErrorKind.NVRM}
_ALWAYS_ERRORS = {ErrorKind.NCCL, ErrorKind.KERNEL, ErrorKind.NVRM}
_LOWER_CASE = {"timeout", "error", "gaierror", "herror"}


def _without_gutter(body: str) -> str:
    """Return a line of an exception group without the lines that Python draws beside it."""
    if body[:1] in " +|":
        gutter = forms.GUTTER.match(body)
        if gutter is not None:
            return body[gutter.end() :] or " "
    return body


def _is_exception(head: re.Match[str], body: str, frames: list[TracebackFrame]) -> bool:
    """Return whether a line at the end of a traceback is its exception."""
    module, _, name = head["type"].rpartition(".")
    code = frames[-1].code if frames else ""
    if name.endswith("Warning") and code and "warn" not in code.lower():
        return False  # another process printed it
    if forms.LIKE_A_TYPE.match(body):
        return True
    if module:
        return name[:1].isupper() or name[:1] == "_" or name in _LOWER_CASE
    if head["type"] in code:
        return True
    return name[:1].isupper() and sum(letter.isupper() for letter in name) > 1


def _line_of_docker(shown: str) -> str:
    """Return the line that a container printed, from a line of Docker's own log."""
    try:
        data = json.loads(shown)
    except (ValueError, RecursionError):
        return shown
    return _text(data, "log").rstrip("\r\n") if isinstance(data, dict) else shown


def _with_parts(data: dict[str, Any], depth: int = 2) -> dict[str, Any]:
    """Return an object with what the objects in it say of an error; its own fields count first."""
    parts: dict[str, Any] = {}
    for name in _JSON_PARTS:
        part = data.get(name)
        if isinstance(part, dict) and depth:
            parts = _with_parts(part, depth - 1) | parts
    return parts | {name: value for name, value in data.items() if name not in parts or value}


def _text(data: dict[str, Any], *names: str) -> str:
    """Return the first of some fields that is a text."""
    return next((data[name] for name in names if isinstance(data.get(name), str)), "")


def parse_log(
    lines: Iterable[str],
    node: str = "",
    log: str = "",
    signs: Signs = _NO_SIGNS,
) -> ParsedLog:
    """Return the errors of a whole log."""
    parser = LogParser(node, log, signs)
    parser.read(lines)
    parser.close()
    return parser.result()
