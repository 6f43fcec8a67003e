"""`ParsedError`: one error that a program printed, without what others add to it."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import TYPE_CHECKING

from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator


class ErrorKind(Enum):
    """Which program's form an error has."""

    PYTHON = "python"  # an exception, with or without a traceback
    CPP = "cpp"  # glog's fatal lines, c10::Error, `terminate called`, signals with a stack
    NCCL = "nccl"  # NCCL WARN
    KERNEL = "kernel"
    NVRM = "nvrm"  # Xid and SXid of NVIDIA's driver
    SLURM = "slurm"  # srun, slurmstepd
    SHELL = "shell"  # bash: line 3: x: command not found
    JAVA = "java"  # Caused by: …
    JSON = "json"  # a log line in JSON with an error's level
    PLAIN = "plain"  # any other line that is marked as an error, or begins like one


class LogLevel(IntEnum):
    """The level that a line states; most lines state none."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    UNSTATED = 35
    LIKELY = 38  # it states none, and begins like an error
    ERROR = 40
    FATAL = 50


class TracebackFrame(Value):
    """One frame of a stack."""

    file: str
    line: int  # 0 where it is not printed
    function: str = ""
    code: str = ""  # the line of code, if it is printed


class ParsedError(Value):
    """One error, with its place. Frames are outermost first, as Python prints them."""

    kind: ErrorKind
    line: str  # the line that shows it, without prefixes: `torch.OutOfMemoryError: CUDA out of …`
    type: str = ""  # as printed, with its module: `torch.OutOfMemoryError`; '' for none
    message: str = ""  # behind the type, with the lines that continue it
    frames: tuple[TracebackFrame, ...] = ()
    cause: ParsedError | None = None  # what it wraps, or was raised from
    level: LogLevel = LogLevel.UNSTATED
    printed: str = ""  # the line with its prefixes, without control characters
    before: tuple[str, ...] = ()  # the lines of this process before `line`, without prefixes

    # Where and when.
    node: str = ""  # '' for this node
    log: str = ""  # the log's name
    number: int = 0  # of the line in the log, from 0 on
    time: float | None = None  # seconds since the year began, as the log states it
    rank: int | None = None
    pid: int | None = None
    actor: str = ""  # the name before `pid=`: `WorkerDict`, `EngineCore_DP0`
    ip: str = ""
    repeated: int = 1  # `[repeated 8x across cluster]`

    @property
    def name(self) -> str:
        """Return the type's name without its module: `OutOfMemoryError`."""
        return self.type.rpartition(".")[2]

    @property
    def module(self) -> str:
        """Return the module of the type: `torch`; '' for Python's own."""
        return self.type.rpartition(".")[0]

    @property
    def text(self) -> str:
        """Return the line as printed, and the lines that continue its message."""
        _, newline, rest = self.message.partition("\n")
        return f"{self.printed or self.line}{newline}{rest}"

    def chain(self) -> Iterator[ParsedError]:
        """Yield the errors from the innermost cause to this one."""
        if self.cause is not None:
            yield from self.cause.chain()
        yield self

    def stack(self) -> Iterator[str]:
        """Yield the frames as Python prints them."""
        for frame in self.frames:
            yield f'  File "{frame.file}", line {frame.line}, in {frame.function}'
            if frame.code:
                yield f"    {frame.code}"

    def is_in(self, *folders: str) -> bool:
        """Return whether a frame's file lies in one of these folders: `vllm`, `ray/_private`."""
        return any(f"/{folder}/" in frame.file for frame in self.frames for folder in folders)
