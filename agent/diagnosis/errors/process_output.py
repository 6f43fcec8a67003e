"""The output of one process in a log: its open traceback, its last error, its texts.

Several processes write into one log; each is read by itself.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.value import Value
from agent.diagnosis.errors.forms import LIKE_A_TYPE, PROGRESS, SHELL
from agent.diagnosis.errors.parsed_error import LogLevel, ParsedError, TracebackFrame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.diagnosis.errors.prefixes import PrintedLine

NEAR = 24  # lines before an error that are kept with it
_MOST_FRAMES = 40  # of one error, the innermost
_MOST_QUOTED = 400  # lines of one text
_MOST_CONTINUED = 12  # lines of one message
_DEEPEST = 12  # errors of one chain
_MOST_OF_TABLE = 60  # lines of a message that lists the columns of a table
_MOST_TITLED = 2  # lines that are not indented below a title
_LONGEST_MESSAGE = 4_000
_COUNTS_ERRORS = re.compile(r"^\d{1,4} validation errors? for ")  # they stand below
_LISTS_COLUMNS = "Couldn't cast"  # of datasets; the columns stand below it, and then why
_FAILED_IMPORT = "Failed to import transformers"  # why stands below it
_WITH_OUTPUT = {"SubprocessCalledProcessError"}  # what pip printed stands below it
_WITH_DETAILS = {"_InactiveRpcError", "_MultiThreadedRendezvous", "AioRpcError"}  # of gRPC
_WITH_LAST_ERROR = {"DistBackendError"}  # what NCCL printed last stands below it
_WITH_ANSWER = {
    *("HfHubHTTPError", "RepositoryNotFoundError", "GatedRepoError", "EntryNotFoundError"),
    *("RemoteEntryNotFoundError", "RevisionNotFoundError", "DisabledRepoError"),
}
"""Of the hub: its own words stand below the request's number, behind an empty line."""
_REQUEST = re.compile(r"\(Request ID: [^()]{1,120}\)$")
_MOST_OF_ANSWER = 3  # lines
_REASON = re.compile(
    r"\s{0,8}(?:Reason|Cause|Caused by|Original (?:error|exception)|Inner (?:error|exception)"
    r"|Last error|Root cause)\W{1,3}\w"
)
"""A line that says why, which may stand behind an empty one."""
_OF_ASCEND = re.compile(r"\d{4}-[\d:-]{10,20} \(PID:|E[A-Z0-9]\d{4}: (?P<why>.{20})?")
"""What Ascend's runtime prints below an exception: a header, then codes with the reason."""
_OF_MEMORY = "OutOfMemoryError"  # of Ray; which node it was stands below it
_NAMES_NODE = "Memory on the node ("
_OPENS_TEXT = re.compile(
    r"\s{0,8}(?:\[(?:prompt|response|output|completion|sequence|solution|question|input)s?\]"
    r"|<(?P<tag>think|tool_response|tool_call|tool_result|information|output|result|observation"
    r"|answer|search|code|documents?|interpreter|stdout|stderr|text)>"
    r"|<\|im_start\|>|(?P<fence>```)\w{0,20}\s{0,4}$"
    r"|(?P<label>(?:Sample |Example )?(?:Prompt|Response|Completion|Question|Observation"
    r"|Generated(?: text)?|Generation|Sample|Model output|Tool (?:output|result|response)"
    r"|Human|User|Assistant)(?: ?#?\d{1,6})?: ?))",
    re.IGNORECASE,
)
_CLOSES_TEXT = re.compile(
    r"\s{0,8}(?:\[(?:ground_truth|score|reward|label|answer)s?\]|<\|im_end\|>|<\|endoftext\|>)"
)
_TEXT_STARTS = (
    *("[", "<", "```", "prompt", "response", "completion", "question", "observation", "generat"),
    *("sample", "example", "model o", "tool", "human", "user", "assistant"),
)
_SUMMARY = re.compile(r"\s{0,8}(?:time|host|rank|exitcode|error_file|traceback) {0,12}:")
"""The block in which torchrun repeats what it saw."""
_CLOSING_STARTS = (
    *(
        "wandb:",
        "Failures:",
        "real",
        "user",
        "sys",
        "Job '",
        "Status message",
        "The actor ",
        "Exiting",
    ),
    *("Shutting down", "Stopping", "Stopped", "Cleaning", "exiting", "shutting down", "stopping"),
    *("class_name:", "actor_id:", "pid:", "namespace:", "ip:", "name:"),
)
_CLOSING_WORDS = (
    *("resource_tracker", "leaked semaphore", "leaked shared_memory", "HYDRA_FULL_ERROR"),
    *("<NO_OTHER_FAILURES>", "Root Cause (first observed", "destroy"),
)


def is_closing(body: str) -> bool:
    """Return whether a line is one that follows an end."""
    start = body.lstrip()
    if start.startswith(_CLOSING_STARTS) or not start[:200].strip("-=*#_~. "):
        return True
    return has_any(body, _CLOSING_WORDS) or _SUMMARY.match(body) is not None


def _is_by_itself(body: str) -> bool:
    """Return whether a line is an error by itself, and continues no message."""
    return LIKE_A_TYPE.match(body) is not None or SHELL.match(body) is not None


def has_any(text: str, signs: Iterable[str]) -> bool:
    """Return whether a text contains one of some signs."""
    for sign in signs:  # noqa: SIM110 - any() takes twice the time, and each line passes here
        if sign in text:
            return True
    return False


class Occurrence(Value):
    """An error of a log, and what the log shows beside it."""

    error: ParsedError
    ordinary_after: int = 0  # ordinary lines that its process printed afterwards
    steps_after: int = 0
    is_retried: bool = False  # another try is announced
    is_quoted: bool = False  # it stands in a text: of a model, a tool, a documentation
    is_harmless: bool = False  # Python ignored it, or logged it and went on by itself


class HeldError:
    """An error whose message, cause or outer error may follow."""

    def __init__(
        self, error: ParsedError, *, is_wrapper: bool, last: int, is_quoted: bool = False
    ) -> None:
        self.error = error
        self.steps = 0  # that the log had shown before
        self.is_quoted = is_quoted  # it stands in a text
        self.is_retried = False  # another try was announced
        self.is_harmless = False  # Python ignored it, or logged it and went on by itself
        self.is_wrapper = is_wrapper  # what it wraps follows
        self.last = last  # number of its last line
        self.inside: list[ParsedError] = []  # what it wraps, from the outside
        self.depth = 0
        self.continued = 0
        self.is_ended = False
        self.awaits_reason = False  # an empty line was printed behind it
        self.has_said_why = False  # a line below the first one shows more

    @property
    def innermost(self) -> ParsedError:
        """Return the error that the next lines continue."""
        return self.inside[-1] if self.inside else self.error

    @property
    def message(self) -> str:
        """Return the message that the next lines continue."""
        return self.innermost.message

    def wrap(self, error: ParsedError, *, is_wrapper: bool) -> None:
        """Put an error inside."""
        if len(self.inside) < _DEEPEST:
            self.inside.append(error)
            self.depth += 1
        self.is_wrapper = is_wrapper
        self.continued = 0
        self.is_ended = False

    def raise_from(self, error: ParsedError, *, is_wrapper: bool) -> None:
        """Make the present error the cause of a later one."""
        self.error = replace(error, cause=_cut(self.whole()))
        self.inside = []
        self.depth = 0
        self.is_wrapper = is_wrapper
        self.continued = 0
        self.is_ended = False

    def chain_inner(self, error: ParsedError) -> None:
        """Raise an error from the innermost one, inside of what is wrapped."""
        inner = self.inside.pop() if self.inside else None
        self.inside.append(error if inner is None else replace(error, cause=_cut(inner)))
        self.continued = 0
        self.is_ended = False

    def continues(self, line: PrintedLine) -> bool:
        """Take a line that continues the innermost message; return False for another line."""
        body = line.body
        if not self.is_ended and self.message.startswith(_LISTS_COLUMNS):
            return self.continues_table(body)
        if self.is_ended or self.continued >= _MOST_CONTINUED:
            return False
        if self.innermost.name in _WITH_OUTPUT:
            return self.continues_output(body)
        if self.innermost.name in _WITH_LAST_ERROR and self.continue_last_error(body):
            return True
        is_of_ascend = _OF_ASCEND.match(body) is not None
        names_node = self.innermost.name == _OF_MEMORY and body.startswith(_NAMES_NODE)
        is_answer = self.awaits_answer() and not _is_by_itself(body)
        if names_node or is_answer or is_of_ascend:
            self.continue_message(body)
            return True
        has_own_level = line.level is not LogLevel.UNSTATED
        if (has_own_level and line.level is not self.error.level) or PROGRESS.search(body):
            return False

        # Indented lines, and what follows a title.
        is_empty = not self.message.strip() and self.innermost.line.rstrip().endswith(":")
        is_title = is_empty or self.message.rstrip().endswith(":")
        is_title = is_title and not self.is_harmless
        is_title = is_title or _COUNTS_ERRORS.match(self.message) is not None
        is_titled = is_title and self.continued < _MOST_TITLED and not _is_by_itself(body)
        if body[0] not in " \t" and not is_titled:
            return False
        self.continue_message(body)
        return True

    def takes_reason(self, body: str) -> bool:
        """Take a line behind an empty one that says why; return False for another line."""
        if not self.awaits_reason:
            return False
        self.awaits_reason = False
        if not _REASON.match(body) or LIKE_A_TYPE.match(body):
            return False
        self.continue_message(body)
        return True

    def awaits_answer(self) -> bool:
        """Return whether the words of the hub follow, behind an empty line."""
        if self.innermost.name not in _WITH_ANSWER or self.continued >= _MOST_OF_ANSWER:
            return False
        return _REQUEST.search(self.message.partition("\n")[0]) is not None

    def continues_table(self, body: str) -> bool:
        """Take the columns below a failed cast, up to the line that says why it failed."""
        if self.continued >= _MOST_OF_TABLE or LIKE_A_TYPE.match(body):
            return False
        self.continue_message(body)
        self.is_ended = body.startswith("because ")
        return True

    def continue_last_error(self, body: str) -> bool:
        """Add NCCL's own lines below an error of torch; the last of them shows most."""
        has_begun = self.message.endswith("Last error:")
        if not has_begun and not body.startswith(("nccl", "Last error:")):
            return False
        self.continue_message(body)
        if has_begun:
            shown = replace(self.innermost, line=body.strip())
            if self.inside:
                self.inside[-1] = shown
            else:
                self.error = shown
            self.is_ended = True
        return True

    def says_why(self, body: str) -> bool:
        """Return whether a line of the message shows more than its first line, which counts."""
        if self.has_said_why:
            return False
        if _COUNTS_ERRORS.match(self.message):
            return "[type=" in body
        of_ascend = _OF_ASCEND.match(body)
        if of_ascend is not None:
            return of_ascend["why"] is not None
        if self.message.startswith(_FAILED_IMPORT):
            return True
        if self.innermost.name in _WITH_ANSWER:
            return _REQUEST.match(self.message) is not None
        if self.innermost.name in _WITH_DETAILS:
            return body.lstrip().startswith("details = ")
        return self.innermost.name in _WITH_OUTPUT and body.lstrip().startswith("ERROR: ")

    def continues_output(self, body: str) -> bool:
        """Take the output of a program that failed, of which only its errors count."""
        text = body.lstrip()
        is_output = body[0] in " \t" or text.startswith(("Command '", "Last "))
        if is_output and text.startswith("ERROR: "):
            self.continue_message(body)
        return is_output

    def continue_message(self, body: str) -> None:
        """Add a line to the innermost message."""
        self.continued += 1
        newest = self.innermost
        if len(newest.message) > _LONGEST_MESSAGE:
            return
        longer = replace(newest, message=f"{newest.message}\n{body}")
        if self.says_why(body):
            self.has_said_why = True
            longer = replace(longer, line=body.strip())
        if not newest.message.strip() and newest.line.rstrip().endswith(":"):
            longer = replace(longer, line=f"{newest.line} {body.strip()}")
        if self.inside:
            self.inside[-1] = longer
        else:
            self.error = longer

    def whole(self) -> ParsedError:
        """Return the outermost error with all others inside."""
        inner: ParsedError | None = None
        for error in reversed(self.inside):
            if inner is not None:
                error = _innermost_with(error, inner)  # noqa: PLW2901 - built from inside
            inner = error
        return self.error if inner is None else _innermost_with(self.error, inner)


def _innermost_with(error: ParsedError, inner: ParsedError) -> ParsedError:
    """Return an error whose innermost cause is another one."""
    if error.cause is None:
        return replace(error, cause=inner)
    return replace(error, cause=_innermost_with(error.cause, inner))


def _cut(error: ParsedError) -> ParsedError:
    """Return an error whose chain is not too deep, by its innermost parts."""
    chain = [*error.chain()]
    if len(chain) < _DEEPEST:
        return error
    kept = replace(chain[0], cause=None)
    for outer in chain[1 : _DEEPEST - 1]:
        kept = replace(outer, cause=kept)
    return kept


class ProcessOutput:
    """What is known of one process by its lines."""

    def __init__(self) -> None:
        self.before: deque[str] = deque(maxlen=NEAR)
        self.opened: tuple[str, ...] = ()  # the lines before the open traceback
        self.frames: list[TracebackFrame] = []
        self.indent = 0  # of the newest frame
        self.place: tuple[str, str, str] | None = None  # actor, pid and address, as Ray states them
        self.stamp = ""  # the last time that it stated
        self.is_open = False
        self.is_chained = False
        self.strays = 0
        self.level = LogLevel.UNSTATED
        self.held: HeldError | None = None
        self.newest: ReleasedError | None = None
        self.ordinary = 0
        self.quoted = 0  # lines that the present text may still have
        self.closes = ""
        self.previous = -2
        self.previous_level = LogLevel.UNSTATED
        self.announced = ""  # the logger's line whose level the open traceback has taken

    @property
    def is_within(self) -> bool:
        """Return whether it has printed a part of an error, and the rest must follow."""
        if self.is_open or self.is_chained:
            return True
        held = self.held
        if held is None or held.is_ended:
            return False
        has_inside = held.is_wrapper and bool(held.error.frames) and not held.inside
        return has_inside or held.message.rstrip().endswith(":")  # a title, or a header

    def repeats(self, body: str, number: int, steps: int) -> bool:
        """Return whether a line is its newest error once more; it then counts as that one."""
        record = self.newest
        if record is None or record.error.line != body.strip() or record.error.cause is not None:
            return False
        if record.error.frames or record.is_retried:
            return False
        record.repeat(number, steps)
        return True

    def add_frame(self, frame: re.Match[str]) -> None:
        """Add a frame; of deep stacks the innermost count."""
        function = (frame["function"] or "").strip()
        self.frames.append(TracebackFrame(frame["file"], int(frame["line"]), function))
        if len(self.frames) > _MOST_FRAMES:
            del self.frames[0]

    def add_code(self, body: str) -> None:
        """Add the line of code below a frame."""
        code = body.strip()
        if self.frames and not self.frames[-1].code and code.strip("^~ "):
            self.frames[-1] = replace(self.frames[-1], code=code[:200])

    def end_of_message(self) -> None:
        """End the message of an error at an empty line; a chain may go on behind it."""
        held = self.held
        if held is None or not held.message.strip():
            return
        if held.continued == 0 and held.message.rstrip().endswith(":"):
            return  # a title, whose text stands below the empty line
        held.is_ended = held.continued > 0 or not held.awaits_answer()
        held.awaits_reason = held.is_ended

    def read_quotes(self, line: PrintedLine) -> None:
        """Begin or end a text of a model or a tool."""
        body = line.body
        if self.quoted:
            self.quoted -= 1
            has_prefix = line.level is not LogLevel.UNSTATED or bool(line.stamp)
            if has_prefix or _CLOSES_TEXT.match(body) or (self.closes and self.closes in body):
                self.quoted = 0
            return
        start = body[:12].lstrip().lower()
        if not start.startswith(_TEXT_STARTS):
            return
        opened = _OPENS_TEXT.match(body)
        if opened is None:
            return
        self.closes = ""
        if opened["tag"]:
            self.closes = f"</{opened['tag']}>"
        if opened["fence"]:
            self.closes = "```"
        rest = body[opened.end() :]
        if not self.closes or self.closes not in rest:
            self.quoted = _MOST_QUOTED // 8 if opened["label"] else _MOST_QUOTED

    def count(self, line: PrintedLine) -> None:
        """Count an ordinary line behind an error; those of an end do not show that it goes on."""
        if self.newest is None or line.level is LogLevel.WARNING or is_closing(line.body):
            return
        self.ordinary += 1


class ReleasedError:
    """An error that was released, with the state of its process at that time."""

    def __init__(self, held: HeldError, process: ProcessOutput) -> None:
        self.error = held.whole()
        self.last = held.last
        self.is_retried = held.is_retried
        self.is_harmless = held.is_harmless
        self.steps = held.steps
        self._process = process
        self._ordinary = process.ordinary
        self._is_quoted = held.is_quoted

    def repeat(self, number: int, steps: int) -> None:
        """Count the same line once more; what followed the former one is no sign any more."""
        self.last = number
        self.steps = steps
        self._ordinary = self._process.ordinary
        self.error = replace(self.error, repeated=self.error.repeated + 1)

    def occurrence(self, steps: int, *, is_stale: bool) -> Occurrence:
        """Return the error with what followed it."""
        return Occurrence(
            self.error,
            ordinary_after=self._process.ordinary - self._ordinary,
            steps_after=steps - self.steps,
            is_retried=self.is_retried,
            is_quoted=self._is_quoted,
            is_harmless=self.is_harmless or is_stale,
        )
