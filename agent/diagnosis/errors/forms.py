"""The forms of errors by program: expressions for one line each, in bounded time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from agent.diagnosis.errors.parsed_error import ErrorKind, LogLevel

if TYPE_CHECKING:
    from collections.abc import Iterable

# --- Python --------------------------------------------------------------------------------------

HEADER = "Traceback (most recent call last)"
HEADER_LINE = re.compile(
    r"(?:[^{\[\"'<]{0,200}\W)?\s{0,20}(?:╭─+ )?Traceback \(most recent call last\)(?::| ─)"
)
FRAME = re.compile(
    r"\s{0,20}File \"(?P<file>[^\"]{1,500})\", line (?P<line>\d{1,7})"
    r"(?:, in (?P<function>.{1,200}))?"
)
BOX_FRAME = re.compile(
    r"│ (?P<file>[^\s:│]{1,400}\.\w{1,6}):(?P<line>\d{1,7}) in (?P<function>[\w.<>]{1,100})"
)
HEAD = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,9}[A-Za-z_]\w{0,100})"
    r"(?:\((?P<inner>[^:]{0,120}?)\))?(?:: ?(?P<message>.{0,2000}))?$"
)
"""The last line of a traceback: a type, and what is behind it."""
LIKE_A_TYPE = re.compile(
    r"(?:[A-Za-z_]\w{0,80}\.){0,9}_?[A-Z]\w{0,100}?"
    r"(?:Error|Exception|Timeout|Interrupt|Failed|Died|Refused|Expired|NotFound|Invalid|Abort"
    r"|Failure|Disconnected|Mismatch|Overflow|Unavailable|Exit|Group|Exceeded|Denied|Full"
    r"|Empty)s?"
    r"(?:\([^:]{0,120}?\))?(?::|$)"
    r"|Exception(?::|$)"
    r"|(?:[a-z_]\w{0,60}\.){1,8}[A-Z]\w{2,60}: "
)
"""A line outside a traceback that begins with an exception."""
CHAINED = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
GUTTER = re.compile(r" {0,40}(?:\+ |[|+]-?(?=[ \n]|$)) ?")
SEPARATOR = re.compile(r"\W{4,200}$|\s{0,40}\+-\+-{4,}|\s{0,40}[+|]-{8,}")
PROCESS = re.compile(
    r"\bray::(?P<actor>[\w.:<>]{1,80})[^()]{0,20}\([^)]{0,20}\)? ?\(?pid=(?P<pid>\d{1,9})"
    r"(?:, ip=(?P<ip>[\w.:]{3,45}))?"
)
PASSED_ON = re.compile(r"Caught \w{1,60} in (?:DataLoader|pin memory|replica)")
"""Messages of exceptions that another process raised: its own traceback follows."""
HARMLESS_BEFORE = (
    "Exception ignored in",
    "--- Logging error ---",
    "Error in sys.excepthook",
    "Exception ignored on",
)
IGNORED_IN = re.compile(
    r"<(?:function|bound method|\w{1,20} object) (?:[\w<>]{1,80}\.){0,9}"
    r"(?P<function>\w{1,80}) (?:at|of) "
)
"""The function in which Python ignored an exception."""
NAMED_TYPES = re.compile(r"\b([A-Z]\w{1,60}(?:Error|Exception))\b")
ANNOUNCES = re.compile(r"[Ee]rror(?!s\b)|[Ff]ail|[Ee]xception|[Cc]annot|[Cc]ould not|[Uu]nable")
"""Words of a logger's line that the traceback below it belongs to."""

# --- other programs ------------------------------------------------------------------------------

_CRASH = re.compile(
    r"terminate called|Fatal Python error: |\*\*\* SIG[A-Z]{3,6} |\*\*\* Process received signal"
    r"|!{3,12} Segfault|Segmentation fault|Bus error|Illegal instruction|Floating point exception"
    r"|double free or corruption|free\(\): |malloc\(\): |malloc_consolidate|munmap_chunk"
    r"|corrupted "
    r"|\*\*\* stack smashing|Aborted(?: \(core dumped\))?$|Killed(?:$| )"
    r"|pure virtual method called"
    r"|SIG(?:SEGV|FPE|BUS|ILL|ABRT): [a-z]|panic: |LLVM ERROR: "
    r"|thread '[^']{1,60}' (?:\(\d+\) )?panicked at|fatal error: (?![A-Z\[])|ptxas fatal"
    r"|[\w./+-]{1,200}: symbol lookup error: "
    r"|[\w./+-]{1,200}: error while loading shared libraries: "
    r"|[\w./+-]{1,200}: [\w./-]{1,200}:\d{1,6}: .{1,300}Assertion .{1,300} failed"
    r"|INTERNAL ASSERT FAILED"
    r"|[\w./-]{1,200}\.(?:cuh?|cpp|cc|h|hpp):\d{1,6}: .{1,400}Assertion .{1,300} failed"
    r"|what\(\): |Caught signal \d{1,2}|c10::|CUDA (?:driver )?[Ee]rror: "
    r"|Memory access fault by GPU|HW Exception by GPU"
    r"|(?:Failed[:,] |Test )?(?:CUDA|Cuda|cuda|NCCL|HIP|MPI|cuBLAS|cuDNN)"
    r" (?:[Ee]rror|[Ff]ailure)(?: at| in)? [\w./-]{1,200}:\d{1,6}\b"
)
_KERNEL = re.compile(
    r"(?:kernel: )?(?:\[ {0,6}\d{1,8}\.\d{3,6}\] ?)?(?:Out of memory: "
    r"|Memory cgroup out of memory|oom-kill:|oom_reaper"
    r"|[\w./:-]{1,60}\[\d{1,9}\]: segfault at |Kernel panic|EXT4-fs error|XFS \("
    r"|blk_update_request|Buffer I/O error"
    r"|INFO: task |watchdog: BUG|mce: |pcieport |AER: |mlx5_core |nfs: server )"
)
_NVRM = re.compile(
    r"\s{0,40}(?:kernel: )?(?:\[ {0,6}\d{1,8}\.\d{3,6}\] ?)?(?:NVRM: |nvidia-nvswitch\d{1,3}: "
    r"|.{0,40}SXid \()"
)
_XID = re.compile(
    r"S?Xid \(|fallen off the bus|API mismatch|RmInitAdapter failed|rm_init_adapter failed"
    r"|GPU .{0,60}(?:lost|halted)"
)
_SLURM = re.compile(
    r"(?:srun|slurmstepd|sbatch|salloc|slurmd"
    r"|slurmctld)(?:\[[\w.-]{1,60}\])?: (?P<rest>.{0,1900})"
)
_SLURM_OK = re.compile(
    r"(?:job \d+ (?:queued|has been allocated)|Granted|Pending|launching|Relinquish|debug|info"
    r"|warning|Submitted|StepId)",
    re.IGNORECASE,
)
_OF_PYXIS = re.compile(r"(?:error: )?pyxis: {1,8}\[(?:INFO|WARN)")
"""What enroot's log says in passing, which pyxis repeats as an error."""
SHELL = re.compile(
    r"(?:-?(?:/[\w./-]{1,200}/)?(?:ba|z|da|k|tc)?sh|/?[\w./-]{1,200}\.(?:sh|bash|slurm|sbatch)"
    r"|/[\w./-]{1,200}/(?:job\d+/)?slurm_script|\./[\w./-]{1,200})"
    r": (?:line )?\d{1,6}: .{1,1500}"
    r"|(?:/[\w./-]{1,200}/)?(?:ba|z|da|k|tc)?sh: .{1,1500}"
    r"|(?:/usr/bin/)?env: .{1,500}|(?:exec|OCI runtime exec failed"
    r"|OCI runtime create failed): .{1,1500}"
    r"|(?:/[\w./-]{1,200}/)?python[\d.]{0,5}: (?:can't open file|No module named"
    r"|Error while).{0,1500}"
    r"|(?:cp|mv|rm|ln|cat|ls|cd|mkdir|tar|touch|chmod|chown|mount|mount\.nfs4?|umount|rsync"
    r"|curl|wget|ssh|scp|git|make|nvcc|gcc|g\+\+|cc1plus|ld|ninja|pip3?|apt-get|docker|sudo"
    r"|unzip|gzip|nvidia-container-cli|enroot|singularity|apptainer)"
    r": (?!\S+ \(\d+%\)).{1,1500}"
    r"|[\w./+-]{1,300}(?::\d{1,6}(?::\d{1,5})?|\(\d{1,6}\)): (?:catastrophic |fatal )?"
    r"error: .{1,1500}"
    r"|(?:nvcc|hipcc) (?:fatal|error) {1,4}: .{1,1500}"
    r"|[\w./-]{1,120}: error: .{1,1500}|fatal: .{1,1500}"
    r"|fatal error: [A-Z\[].{1,1500}|make(?:\[\d+\])?: \*\*\* .{1,500}"
    r"|E: .{3,500}"
)
"""What shells, commands and compilers print of an error: a line by itself."""
COMPILER = re.compile(
    r"(?<![\w./+-])[\w./+-]{1,300}(?::\d{1,6}(?::\d{1,5})?|\(\d{1,6}\)): "
    r"(?:catastrophic |fatal )?error: "
    r"|(?:nvcc|hipcc|ptxas|gcc|g\+\+|cc1plus|ld|ninja)\b.{0,3}(?:fatal|error)\b"
    r"|(?:nvidia-container-cli|enroot|singularity|apptainer): "
)
"""What a compiler or the start of a container prints: no command of a script."""
_SHELL_OK = re.compile(
    r"(?:using|removing|created|copied|Cloning|Already|Saving|sending|receiving|Collecting"
    r"|Entering|Leaving)\b|warning: |no job control in this shell"
)
_JAVA = re.compile(
    r"(?:Exception in thread \"[^\"]{0,80}\" |(?P<inner>Caused by: ))?"
    r"(?P<type>(?:javax?|org|com|io|net|scala|kotlin|sun|jdk)\.(?:[a-z]\w{0,40}\.){1,9}"
    r"[A-Z]\w{0,80}(?:Exception|Error))(?:: (?P<message>.{0,1900}))?$"
)
JAVA_FRAME = re.compile(
    r"\s{1,8}at [\w.$<>/]{3,300}\((?P<file>[\w.]{1,100})(?::(?P<line>\d{1,7}))?\)"
    r"|\s{1,8}\.\.\. \d+ more"
)
_NCCL = re.compile(r"(?:[\w./-]{1,80}:\d{1,7} )?NCCL (?:WARN|ERROR) (?P<message>.{0,1900})")
_NCCL_OK = "Failed to open libibverbs"  # without InfiniBand it takes sockets
NATIVE_FRAME = re.compile(
    r"\s{0,8}(?:Exception raised from |\*\*\* Check failure stack"
    r"|frame #\d{1,3}: |(?:PC: )?@ {1,20}(?:0x)?[\da-f]{6,18}"
    r"|#\d{1,3} {1,2}0x[\da-f]{4,18} |\[\s{0,3}\d{1,3}\] [\w/(.]|\d{1,3} {1,4}0x[\da-f]{4,18} )"
)
_INSTANCE = re.compile(r"terminate called after throwing an instance of '([^']{1,200})'")

_BEGINS = re.compile(
    r"\W{0,4}(?:\w{1,30} )?(?:error|fatal|failed|failure|cannot|can't|could not|couldn't"
    r"|unable|exception|abort(?:ed|ing)?"
    r"|panic|killed|invalid|unknown|unsupported|unrecognized|missing|refused|denied"
    r"|permission denied|no such|segmentation|watchdog|insufficient|not enough|out of memory"
    r"|too many|timed out"
    r"|no (?:gpus?|space|module|route|devices?|available|suitable)|quota|preempted|evicted"
    r"|rejected|mismatched|错误|fehler|erreur|ошибка)\b|Key '.{1,120}' (?:is )?not in "
    r"|\[Errno \d{1,3}\] [A-Z]"
    r"|Some of the step tasks have been OOM Killed",
    re.IGNORECASE,
)
"""Beginnings of a message about an error, in any program."""
STEMS = (
    *("error", "fail", "exception", "warn", 'file "', "cannot", "not ", "no ", "kill", "signal"),
    *("unable", "refused", "denied", "invalid", "missing", "mismatch", "timed out", "timeout"),
    *("exceed", "unsupported", "abort", "reach", "die", "dead", "crash", "corrupt", "memory"),
    *("oom", "panic", "fatal", "xid", "nvrm", "cancel", "terminat", "fault", "traceback", "what()"),
    *("insufficient", "incompatible", "undefined", "unexpected", "unrecogni", "conflict"),
    *("too many", "already", "quota", "closed", "reset", "expired", "unavailable", "unknown"),
    *("lost", "exhausted", "eviction", "evicted", "preempt", "duplicate", "exit", ": line "),
    *(
        "unbound",
        "stale",
        "syntax",
        "illegal",
        "busy",
        "read-only",
        "错误",
        "失败",
        "fehler",
        "erreur",
        "ошибк",
    ),
)
"""Parts of words, in small letters: a line without any of them is about no error."""


# A word's first letter stands before the test for its beginning: a search skips all other letters.
PROGRESS = re.compile(
    r"s(?<=\bs)tep(?::\d+ - | \d+/\d+ )|G(?<=\bG)lobal step \d+: \{|\{'loss': "
    r"|T(?<=\bT)rain epoch \[|i(?<=\bi)teration +\d+/ *\d+ \|"
    r"|E(?<=\bE)poch: \[\d+\]\[ *\d+/\d+\]"
)
"""Lines that a training step prints."""
LIKE_PROGRESS = re.compile(
    r"[SsIi](?<=\b\w)(?:(?<=[Ss])tep|(?<=[Ii])ter(?:ation)?)[ :=#]{1,2}(?P<count>\d{1,9})\b"
    r".{0,80}\b(?:loss|reward|lr|grad)"
)
"""Lines of a user's own loop: many of them show that the training went on."""
BAR = re.compile(r"\| {0,4}(?P<count>\d{1,9})/\d{1,9} \[[\d:]{4,12}<[^\]]{1,80}\bloss=")
"""A progress bar that shows a loss: at an end it is often printed once more."""


class Form(NamedTuple):
    """The form of one line that is an error by itself."""

    kind: ErrorKind
    type: str = ""
    message: str = ""
    level: LogLevel = LogLevel.ERROR
    is_inner: bool = False  # Java's `Caused by:`


def form_of(body: str, level: LogLevel) -> Form | None:
    """Return the form of a line outside a Python traceback; None for an ordinary one."""
    # Programs whose form is their own, whatever level they state.
    for form_of_program in (_nccl, _driver, _slurm):
        form = form_of_program(body)
        if form is not None:
            return None if form is _ORDINARY else form
    if level < LogLevel.UNSTATED:
        return Form(ErrorKind.PLAIN, "", body, level)

    # The end of a native program, exceptions without a traceback, shells.
    for form_of_error in (_crash, _java, _exception, _shell, _event):
        form = form_of_error(body)
        if form is not None:
            return form._replace(level=max(form.level, level))

    # A line of a crash's stack says no more than the line above the stack.
    if NATIVE_FRAME.match(body):
        return None

    # What states its level, or begins like an error.
    if level is LogLevel.FATAL:
        return Form(ErrorKind.CPP, "", body, level)
    if _ADVICE.match(body) or _NONE_FAILED.match(body):
        return None
    return Form(ErrorKind.PLAIN, "", body, _level_of(body, level))


def _level_of(body: str, level: LogLevel) -> LogLevel:
    """Return the level of a line without the form of an error, by what it states or begins with."""
    if body.rstrip().endswith(":"):  # a title
        return LogLevel.UNSTATED
    if level is LogLevel.ERROR or _STATES_LEVEL.match(body):
        return LogLevel.ERROR
    return LogLevel.LIKELY if _BEGINS.match(body) else LogLevel.UNSTATED


_STATES_LEVEL = re.compile(
    r"\W{0,4}(?:\w{1,30} )?(?:ERROR|FATAL)\b"
    r"|(?:[\w./+-]{1,300}\.(?:cpp|cc|cuh?|h):(?:\w{1,80}:)?\d{1,6}: )?"
    r"(?:non-zero status: \d|NULL value \w|.{0,80}\bfailed, exiting)"  # NVSHMEM's own form
)
_NONE_FAILED = re.compile(
    r"\W{0,8}(?:\w{1,30} ){0,3}(?:errors?|failed|failures?|fails)\s?[=:]\s?(?:0|none|false)\b",
    re.IGNORECASE,
)
"""Beginnings of lines that state no failure."""
_ADVICE = re.compile(
    r"\W{0,4}(?:if|when(?:ever)?|in case|to avoid|to fix|note|tip|hint|see|usage|for example|e\.g\."
    r"|you (?:may|can|might)|consider|try |example|docs?:)\b",
    re.IGNORECASE,
)
"""Beginnings of documentation, which names errors that did not happen."""
_EVENT = re.compile(
    r"\s{0,8}(?:Warning|Error) {2,12}(?!Unhealthy\b|BackOff\b|DNSConfig)[A-Z]\w{2,60}"
    r" {2,}(?:\d|<|[a-z-]+ {2,})"
)
_ORDINARY = Form(ErrorKind.PLAIN)


def _nccl(body: str) -> Form | None:
    match = _NCCL.match(body) if "NCCL" in body else None
    if match is None:
        return None
    if match["message"].startswith(_NCCL_OK):
        return _ORDINARY
    return Form(ErrorKind.NCCL, "", match["message"])


def _driver(body: str) -> Form | None:
    """Return the form of a line of the kernel, or of NVIDIA's driver in it."""
    if ("NVRM" in body or "nvswitch" in body or "SXid" in body) and _NVRM.match(body):
        is_fault = _XID.search(body) is not None
        return Form(ErrorKind.NVRM, "", body) if is_fault else _ORDINARY
    return Form(ErrorKind.KERNEL, "", body) if _KERNEL.match(body) else None


def _slurm(body: str) -> Form | None:
    match = _SLURM.match(body) if body[0] == "s" else None
    if match is None:
        return None
    if _SLURM_OK.match(match["rest"]) or _OF_PYXIS.match(match["rest"]):
        return _ORDINARY
    return Form(ErrorKind.SLURM, "", match["rest"].removeprefix("error: "))


def _crash(body: str) -> Form | None:
    if not _CRASH.match(body):
        return None
    named = _INSTANCE.match(body)
    return Form(ErrorKind.CPP, named[1] if named else "", body, LogLevel.FATAL)


def _java(body: str) -> Form | None:
    match = _JAVA.match(body) if "." in body[:80] else None
    if match is None:
        return None
    is_inner = match["inner"] is not None
    return Form(ErrorKind.JAVA, match["type"], match["message"] or "", is_inner=is_inner)


def _exception(body: str) -> Form | None:
    head = HEAD.match(body) if LIKE_A_TYPE.match(body) else None
    if head is None:
        return None
    is_warning = head["type"].endswith("Warning")
    level = LogLevel.WARNING if is_warning else LogLevel.ERROR
    return Form(ErrorKind.PYTHON, head["type"], head["message"] or "", level)


def _event(body: str) -> Form | None:
    """Return the form of a warning among the events of a pod."""
    return Form(ErrorKind.PLAIN, "", body) if _EVENT.match(body) else None


def _shell(body: str) -> Form | None:
    if not SHELL.match(body):
        return None
    rest = body.partition(": ")[2]
    return None if _SHELL_OK.match(rest) else Form(ErrorKind.SHELL, "", rest)


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return an expression for any of some texts, by first letter: a search takes half the time."""
    by_first: dict[str, list[str]] = {}
    for text in texts:
        by_first.setdefault(text[0], []).append(re.escape(text[1:]))
    return re.compile(
        "|".join(f"{re.escape(first)}(?:{'|'.join(rests)})" for first, rests in by_first.items())
    )


_ANY_STEM = any_of(STEMS)


def is_about_an_error(body: str) -> bool:
    """Return whether a line has a part of a word that errors have."""
    return _ANY_STEM.search(body.lower()) is not None
