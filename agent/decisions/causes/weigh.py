"""Find the cause of a failure in the logs of all nodes, or else the first error."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from agent.base.value import Value
from agent.decisions.causes.rows import (
    Again,
    Cause,
    Weight,
    body_of,
    compiled,
    is_mild,
    last_progress,
    matches,
    plain_lines,
    rank_of,
    table,
    time_of,
)
from agent.decisions.values import place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_EXCEPTION = (
    r"(?:[A-Za-z_]\w*\.){0,8}_?[A-Z]\w*(?:Error|Exception|Timeout|Interrupt|Exit|Failed|Died|Refused"
    r"|Expired|NotFound|Invalid|Abort|Full|Empty|Failure|Disconnected|Mismatch|Overflow)"
    r"(?:\([^)]{0,80}\))?(?::|$)"
    r"|(?:[a-z_]\w*\.){1,8}[A-Z]\w{2,60}: "
)
_NATIVE = r"\s*what\(\): |terminate called after|panic: |fatal error: |FATAL[: ]"
_WRAPPER = (
    r"^(?:ray\.exceptions\.|torch\.multiprocessing\.spawn\.|torch\.distributed\.elastic\.)"
    r"|RayTaskError|ChildFailedError|EngineDeadError|Engine core initialization failed"
    r"|Engine process failed to start|CalledProcessError|ProcessRaisedException|SystemExit"
    r"|KeyboardInterrupt|SignalException|WorkerCrashedError|AsyncEngineDeadError|Executor failed"
    r"|WorkerProc initialization failed|terminate called after|error raised in its creation task"
    r"|JobSupervisor|Job entrypoint command failed"
)
_SYMPTOM = (
    r"Watchdog caught collective operation timeout|detected by watchdog|watchdog thread terminated"
    r"|DistBackendError|\bnccl\w*Error\b|NCCL error|NCCL communicator was aborted|ncclInvalidUsage"
    r"|Connection closed by|Connection reset by peer|ConnectionResetError|Broken pipe"
    r"|BrokenPipeError|Some NCCL operations have failed or timed out|recvValue failed"
    r"|sendBytes failed|ncclUnhandledCudaError|Timed out waiting \d+ms for (?:recv|send)"
    r"|Socket Timeout|wait timeout after|DistNetworkError|DistStoreError|store->get\("
    r"|Timeout at NCCL work|monitoredBarrier|EOFError$"
    r"|remote process exited|Signal 15|terminated by signal"
)
_ERROR = (
    r"\b(?:ERROR|FATAL|CRITICAL)\b|\[[^\]]{0,60} E \d+ \d+\]|^\W*E\d{4} |Failed to |[Uu]nhandled"
    r"|panic|(?:^|\W)[Ee]rror: "
)
_TRACE = r'^\s*(?:File "|raise |\^+|Traceback)'
_PLACE = r"\bip=(?P<ip>[\d.]{7,15}|[\da-fA-F:]{3,39})[,)]|^\s+ip: (?P<ip2>\S+)"
_BLOCK = r"^\s*rank\s+: (\d+) \(local_rank: \d+\)"
ACTOR_WITHOUT_A_WORD = "actor without a word"  # its row is for workers of Ray: see their logs
_AFTER_ERRORS = {"SIGKILL", "crash", "NCCL connect", "InfiniBand", "rendezvous", "node lost"}
"""Rows that an error before them leads to, whether or not a row explains it."""
_SHOWN = 240  # characters of a line in a sentence
_FRAMES = 60  # lines before an error that may name the node of its process
_MOST_TIMES = 400  # lines before an error that are searched for a time


class Log(Value):
    """The end of one log of a node."""

    node: str  # '' for this node
    name: str
    text: str
    of_ray: bool = False  # whether Ray itself wrote it, not the job


class Diagnosis(Value):
    """The cause of a failure as far as the logs show it, with the line that shows it."""

    line: str = ""
    log: str = ""
    node: str = ""  # whose log the line is from
    ip: str = ""  # the address of the node that the line is about, if the log names it
    rank: int | None = None
    key: str = ""  # the row's key; '' if the cause is not known
    labels: tuple[str, ...] = ()
    cause: str = ""
    what_to_do: str = ""
    again: Again = Again.EITHER
    weight: Weight = Weight.LAST
    after_loss: bool = False  # whether the loss of a node leads to it

    @property
    def is_known(self) -> bool:
        """Return whether a row explains the failure."""
        return bool(self.key)

    @property
    def is_no_loss(self) -> bool:
        """Return whether the cause is none that the loss of a node leads to."""
        return self.weight >= Weight.CAUSE and not self.after_loss

    def remedy(self) -> str:
        """Return it as the remedy of an outcome: the cause with its place, or the first error."""
        if not self.line:
            return ""
        where = place(self.node, self.rank)
        if self.is_known:
            return f"{self.log} shows why{where}: {self.cause} ({self._shown!r}). {self.what_to_do}"
        if self.cause:
            what = f"{self.log} shows{where} {self._shown!r}: {self.cause}. {self.what_to_do}"
            return f"no known cause: {what}"
        return f"no known cause: the first error{where} is {self._shown!r} in {self.log}"

    @property
    def _shown(self) -> str:
        return self.line if len(self.line) <= _SHOWN else f"{self.line[:_SHOWN]}…"


class _Hit(NamedTuple):
    """A line that a row matches, or that is an error without a row."""

    log: int
    at: int
    row: Cause | None = None


def weigh(logs: Sequence[Log]) -> Diagnosis:
    """Return the cause that explains most: a cause before a symptom, the first before the later."""
    rows = table()
    texts = [plain_lines(log.text) for log in logs]
    steps = [last_progress(lines) for lines in texts]
    hits = [
        _Hit(number, at, row)
        for number, lines in enumerate(texts)
        for at, row in matches(lines, rows.all_rows).items()
        if row.key in rows.cause_keys and (logs[number].of_ray or not row.of_ray)
    ]
    plain = [_Hit(n, at) for n, lines in enumerate(texts) for at in _errors(lines, steps[n] + 1)]
    current = [hit for hit in hits if hit.at > steps[hit.log]]
    if not current and not plain:
        current = hits
    chosen = _strongest(texts, current, plain)
    if chosen is not None and chosen.row is not None:
        row, found = chosen.row, _found_at(logs, texts, chosen)
        cause, what_to_do = row.filled(texts[chosen.log][chosen.at])
        found = replace(found, key=row.key, labels=row.labels, cause=cause, what_to_do=what_to_do)
        return replace(found, again=row.again, weight=row.weight, after_loss=row.after_loss)
    return _unexplained(logs, texts, steps, plain)


def _strongest(
    texts: Sequence[Sequence[str]], hits: Sequence[_Hit], plain: Sequence[_Hit]
) -> _Hit | None:
    """Return the hit that explains most, if it explains more than the errors without a row."""
    rows = {hit: hit.row for hit in hits if hit.row is not None}
    if not rows:
        return None
    most = max(row.weight for row in rows.values())
    best = _first(texts, [hit for hit, row in rows.items() if row.weight == most])
    others = [hit for hit in plain if all((hit.log, hit.at) != one[:2] for one in rows)]
    if most is Weight.LAST and (others or _symptoms(texts)):
        return None
    row = rows[best]
    ended_only = most is Weight.WEAK and row.key in _AFTER_ERRORS
    if ended_only and any(hit.log == best.log and hit.at < best.at for hit in others):
        return None  # an exception that no row explains came first
    return best


def _found_at(logs: Sequence[Log], texts: Sequence[Sequence[str]], hit: _Hit) -> Diagnosis:
    """Return where a hit is: its line and log, and the address and rank that the log names."""
    log, lines, at = logs[hit.log], texts[hit.log], hit.at
    return Diagnosis(lines[at].strip(), log.name, log.node, _ip(lines, at), _rank(lines, at))


def _unexplained(
    logs: Sequence[Log], texts: Sequence[Sequence[str]], steps: Sequence[int], plain: Sequence[_Hit]
) -> Diagnosis:
    """Return the innermost error's own line, or the first symptom."""
    traced = [hit for hit in plain if _has_trace(texts[hit.log], hit.at)]
    hits: Sequence[_Hit] = traced or plain or _symptoms(texts)
    if not hits:
        hits = [
            _Hit(number, at)
            for number, lines in enumerate(texts)
            for at, line in enumerate(lines)
            if at > steps[number] and not is_mild(line) and compiled(_ERROR).search(line[:300])
        ]
    if not hits:
        return Diagnosis()
    first = _first(texts, hits)
    found = _found_at(logs, texts, first)
    row = matches([texts[first.log][first.at]], table().symptom_rows).get(0)
    return found if row is None else replace(found, cause=row.cause, what_to_do=row.what_to_do)


_ERROR_WORDS = (
    *("Error", "Exception", "Timeout", "Interrupt", "Exit", "Failed", "Died", "Refused", "Expired"),
    *("NotFound", "Invalid", "Abort", "Full", "Empty", "Failure", "Disconnected", "Mismatch"),
    *("Overflow", "what()", "terminate", "panic", "fatal", "FATAL"),
)
_SYMPTOM_WORDS = (
    *("atchdog", "NCCL", "nccl", "DistBackend", "onnection", "roken", "Bytes failed", "recvValue"),
    *("Timed out", "Timeout", "timeout", "DistNetwork", "DistStore", "store->", "Barrier"),
    *("EOFError", "remote process", "ignal"),
)


def _errors(lines: Sequence[str], start: int) -> Iterator[int]:
    """Yield the lines that end a Python traceback or announce the end of a native program.

    Lines that only pass on another error, and symptoms, are none of them.
    """
    for at in range(start, len(lines)):
        line = lines[at]
        if ": " not in line and not any(word in line for word in _ERROR_WORDS):
            continue
        body = body_of(line)
        is_end = compiled(_EXCEPTION).match(body) or compiled(_NATIVE).match(body)
        is_other = compiled(_WRAPPER).search(body) or compiled(_SYMPTOM).search(line)
        if is_end and not is_other and not is_mild(line):
            yield at


def _symptoms(texts: Sequence[Sequence[str]]) -> list[_Hit]:
    return [
        _Hit(number, at)
        for number, lines in enumerate(texts)
        for at, line in enumerate(lines)
        if any(word in line for word in _SYMPTOM_WORDS)
        and not is_mild(line)
        and compiled(_SYMPTOM).search(line) is not None
    ]


def _first(texts: Sequence[Sequence[str]], hits: Sequence[_Hit]) -> _Hit:
    """Return the earliest hit; logs without times count in their order."""
    firsts: dict[int, _Hit] = {}
    for hit in sorted(hits, key=lambda one: (one.log, one.at)):
        firsts.setdefault(hit.log, hit)
    times = {log: _time(texts[log], hit.at) for log, hit in firsts.items()}
    if len(firsts) > 1 and all(times.values()):
        return min(firsts.values(), key=lambda hit: (times[hit.log] or (), hit.log))
    return firsts[min(firsts)]


def _time(lines: Sequence[str], at: int) -> tuple[int, ...] | None:
    for line in reversed(lines[max(0, at - _MOST_TIMES) : at + 1]):
        found = time_of(line)
        if found is not None:
            return found
    return None


def _has_trace(lines: Sequence[str], at: int) -> bool:
    return any(compiled(_TRACE).match(body_of(line)) for line in lines[max(0, at - 4) : at])


def _ip(lines: Sequence[str], at: int) -> str:
    """Return the address in the line's prefix, or that of the process whose error it is."""
    for line in reversed(lines[max(0, at - _FRAMES) : at + 1]):
        found = compiled(_PLACE).search(line)
        if found is not None:
            return found["ip"] or found["ip2"]
    return ""


def _rank(lines: Sequence[str], at: int) -> int | None:
    """Return the rank in the line's prefix, or the one that torchrun saw failing first."""
    rank = rank_of(lines[at])
    if rank is not None:
        return rank
    is_root = False
    for line in lines:
        is_root = is_root or "Root Cause (first observed failure)" in line
        found = compiled(_BLOCK).match(line) if is_root else None
        if found is not None:
            return int(found[1])
    return None
