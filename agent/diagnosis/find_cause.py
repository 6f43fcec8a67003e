"""The search for the cause of a failure in a run's logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.text import without_controls
from agent.base.value import Value
from agent.decisions.shared import Known, place, shortened
from agent.diagnosis.rows import Row, Weight, compiled, sign_of, table, word_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

LONGEST = 2_000  # characters of a line that are searched
NEAR = 14  # lines before a match that `Words.near` may match
_STAMP = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?"
_PREFIX = (
    r"\s*(?:"
    r"\((?P<who>[\w.:<>/ -]{1,60}?)(?: \w+=\w+){0,3} pid=\d+(?:, ip=(?P<ip>[\w.:]+))?\)"
    r"|\((?:raylet|autoscaler|gcs_server)[^)]{0,60}\)"
    r"|\[(?:rank|default|Rank )(?P<rank>\d+)\]:?"
    r"|\[[EWIF]\s?\d{0,4}[^\]]{0,60}\.(?:cpp|cc|h|hpp|py):\d+\]"
    r"|[EWIF]\d{4} \d\d:\d\d:\d\d[^\]]{0,80}\]"
    r"|(?:ERROR|CRITICAL|WARNING|INFO|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d(?: \[[^\]]{1,60}\])?"
    rf"|\[{_STAMP}[^\]]{{0,40}}\]"
    rf"|{_STAMP}"
    r"|(?:ERROR|CRITICAL|Error)(?::[\w.]+)?:(?= )"
    r"|\[(?:ERROR|WARNING|INFO|error)\]"
    r"|\[[\w./-]{1,40}:\d+:\w{1,60}\]"
    r"|[\w.-]{1,40}\.(?:cc|py|h):\d+\]?:?(?: --)?"
    r"|(?:[\w.-]{1,60}: )?\d{1,4}: (?=\S)"
    r"|[-|:](?= )|ERROR(?= )"
    r")\s?"
)
"""What a launcher, Ray or a logger writes before a program's own line."""
_RANK = r"\[(?:rank|Rank |default)(?P<a>\d{1,7})\]|\brank=(?P<b>\d{1,7})\b"
_MILD = (
    r"(?<!NCCL )\bWARN(?:ING)?\b|^\W*(?:rank\d+\]:)?\[?W\d{3,4} |\b(?:INFO|DEBUG|NOTICE)\b"
    r"|(?<=\w{4})Warning: "
)
_HANDLED = (
    r"(?i)"
    r"\bretrying\b|\bwill retry\b|\bfalling back\b|\bfallback\b|\bskipping\b|\bignor(?:ed|ing)\b"
    r"|\btrying (?:again|the next|another)\b|\bretry loop\b|\battempt \d+ ?(?:/|of) ?\d+"
)
_PROGRESS = (
    r"\bstep:\d+ - |\bGlobal step \d+: \{|\bstep \d+/\d+ |\{'loss': |\bTrain epoch \["
    r"|\biteration +\d+/ *\d+ \||\bEpoch: \[\d+\]\[ *\d+/\d+\]"
)
_TIME = (
    r"(?:\d{4}-(?P<mo>\d\d)-(?P<d>\d\d)[ T_]|\[?[EWIF](?P<mo2>\d{1,2})(?P<d2>\d\d) "
    r"|(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<d3>\d{1,2}) "
    r"|\b(?P<mo4>\d\d)-(?P<d4>\d\d) )(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
)
_PRINTED_SETTINGS = "Namespace("  # what follows are values of argparse, in any words
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"


def plain_lines(text: str) -> list[str]:
    """Split a log into lines without control characters, as a terminal shows them."""
    lines = without_controls(text.replace("\r\n", "\n")).split("\n")
    return [line.rstrip("\r").rpartition("\r")[2][:LONGEST] for line in lines]


def body_of(line: str) -> str:
    """Return a line without the prefixes of launchers, Ray and loggers."""
    at = 0
    for _ in range(6):
        prefix = compiled(_PREFIX).match(line, at)
        if prefix is None or prefix.end() == at:
            break
        at = prefix.end()
    return line[at:].lstrip(" ") if at else line


def rank_of(line: str) -> int | None:
    """Return the rank that a line names in its prefix."""
    named = compiled(_RANK).search(line[:200])
    if named is None:
        return None
    return int(next(filter(None, named.groups())))


def is_mild(line: str) -> bool:
    """Return whether a line is a warning or less, or speaks of another try."""
    return _is_low(line) or compiled(_HANDLED).search(line) is not None


def _is_low(line: str) -> bool:
    return compiled(_MILD).search(line, 0, 160) is not None


def last_progress(lines: Sequence[str]) -> int:
    """Return the index of the last line that a training step prints; -1 without one."""
    progress = compiled(_PROGRESS)
    return next((at for at in reversed(range(len(lines))) if progress.search(lines[at])), -1)


def matches(lines: Sequence[str], rows: Iterable[Row]) -> dict[int, Row]:
    """Return the first row that matches each line, by the line's index."""
    row_of: dict[int, Row] = {}
    bodies: dict[int, str] = {}
    every = range(len(lines))
    loud = [at for at in every if not _is_low(lines[at])]

    # Most messages are in no line: a word of theirs is looked up among those of the whole text,
    # then their signs are searched in it.
    text = "\n".join(lines)
    spoken = {"", *compiled(r"\w+").findall(text)}
    loud_text = "\n".join([lines[at] for at in loud])
    messages = [(row, words) for row in rows for words in row.words]
    for row, words in messages:
        sign = sign_of(words.text)
        if word_of(sign) not in spoken or sign not in (text if words.mild else loud_text):
            continue

        # Which lines have it? Below a frame stands its line of code, which may quote a message.
        for at in every if words.mild else loud:
            line = lines[at].partition(_PRINTED_SETTINGS)[0]
            if at in row_of or sign not in line:
                continue
            if at and _is_frame(lines[at - 1]):
                continue
            if not words.mild and compiled(_HANDLED).search(line) is not None:
                continue
            if at not in bodies:
                bodies[at] = body_of(line)
            before = _before(lines, at) if words.near else ""
            if words.match(line, bodies[at], before):
                row_of[at] = row
    return row_of


def _is_frame(line: str) -> bool:
    return 'File "' in line and body_of(line).lstrip().startswith('File "')


def _before(lines: Sequence[str], at: int) -> str:
    """Return the lines before one, without those that name much in passing."""
    near = lines[max(0, at - NEAR) : at]
    return "\n".join(
        line
        for line in near
        if compiled(_PROGRESS).search(line) is None
        and "Error executing job with overrides" not in line
    )


def find_known_lines(
    lines: Sequence[str], reported: Iterable[str] = (), before: Sequence[str] = ()
) -> list[Known]:
    """Return the known lines among plain ones, each row once, without rows already reported.

    `before` are the lines before them, which may show what an error is about.
    """
    texts = [*before, *(line[:LONGEST] for line in lines)]
    known_lines = []
    seen = {*reported}
    row_of = matches(texts, table().values())

    # Each row counts once, and only in the new lines.
    for at in sorted(row_of):
        row = row_of[at]
        if at < len(before) or row.key in seen or not row.is_live:
            continue
        seen.add(row.key)
        cause, what_to_do = row.filled(texts[at])
        known = Known(
            key=row.key,
            line=texts[at].strip(),
            cause=cause,
            what_to_do=what_to_do,
            is_noise=row.kind == "noise",
            is_symptom=row.kind == "symptom",
            rank=rank_of(texts[at]),
        )
        known_lines.append(known)
    return known_lines


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
_ERROR_LINE = (
    r"\b(?:ERROR|FATAL|CRITICAL)\b|\[[^\]]{0,60} E \d+ \d+\]|^\W*E\d{4} |Failed to |[Uu]nhandled"
    r"|panic|(?:^|\W)[Ee]rror: "
)
_PLACE = r"\bip=(?P<ip>[\d.]{7,15}|[\da-fA-F:]{3,39})[,)]|^\s+ip: (?P<ip2>\S+)"
_BLOCK = r"^\s*rank\s+: (\d{1,7}) \(local_rank: \d+\)"
ACTOR_WITHOUT_A_WORD = "actor without a word"  # its row is for workers of Ray: see their logs
_AFTER_ERRORS = {"SIGKILL", "crash", "NCCL connect", "InfiniBand", "rendezvous", "node lost"}
"""Rows that an error before them leads to, whether or not a row explains it."""
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
    row: Row | None = None  # the row that explains the failure, if any
    cause: str = ""
    what_to_do: str = ""

    @property
    def key(self) -> str:
        """Return the row's key; '' if the cause is not known."""
        return "" if self.row is None else self.row.key

    def remedy(self) -> str:
        """Return it as the remedy of an outcome: the cause with its place, or the first error."""
        if not self.line:
            return ""
        where = place(self.node, self.rank)
        shown = shortened(self.line)
        if self.row is not None:
            return f"{self.log} shows why{where}: {self.cause} ({shown!r}). {self.what_to_do}"
        if self.cause:
            what = f"{self.log} shows{where} {shown!r}: {self.cause}. {self.what_to_do}"
            return f"no known cause: {what}"
        return f"no known cause: the first error{where} is {shown!r} in {self.log}"


Spot = tuple[int, int]  # a line by the numbers of its log and in the log


def diagnose_logs(logs: Sequence[Log]) -> Diagnosis:
    """Return the cause that explains most: a cause before a symptom, the first before the later."""
    texts = [plain_lines(log.text) for log in logs]
    steps = [last_progress(lines) for lines in texts]

    # Which lines does a row explain, and which are errors of a program?
    known = {
        (number, at): row
        for number, lines in enumerate(texts)
        for at, row in matches(lines, table().values()).items()
        if row.kind == "cause" and (logs[number].of_ray or not row.of_ray)
    }
    errors = [(n, at) for n, lines in enumerate(texts) for at in _errors(lines, steps[n] + 1)]

    # Those before the last step count only where nothing follows it.
    current = {spot: row for spot, row in known.items() if spot[1] > steps[spot[0]]}
    if not current and not errors:
        current = known

    best = _strongest(texts, current, errors)
    if best is not None:
        row = current[best]
        cause, what_to_do = row.filled(texts[best[0]][best[1]])
        line = _line_at(logs, texts, best)
        return replace(line, row=row, cause=cause, what_to_do=what_to_do)

    # No row explains it: the first error, else symptom, else any line of an error.
    spots = errors or _loud_lines(texts, _SYMPTOM)
    if not spots:
        spots = [spot for spot in _loud_lines(texts, _ERROR_LINE) if spot[1] > steps[spot[0]]]
    return _unexplained(logs, texts, spots)


def _strongest(
    texts: Sequence[Sequence[str]], known: Mapping[Spot, Row], errors: Sequence[Spot]
) -> Spot | None:
    """Return the line that explains most, if it explains more than the errors without a row."""
    if not known:
        return None
    most = max(row.weight for row in known.values())
    best = _first(texts, [spot for spot, row in known.items() if row.weight == most])
    others = [spot for spot in errors if spot not in known]
    if most is Weight.LAST and (others or _loud_lines(texts, _SYMPTOM)):
        return None
    ended_only = most is Weight.WEAK and known[best].key in _AFTER_ERRORS
    if ended_only and any(log == best[0] and at < best[1] for log, at in others):
        return None  # an exception that no row explains came first
    return best


def _line_at(logs: Sequence[Log], texts: Sequence[Sequence[str]], spot: Spot) -> Diagnosis:
    """Return where a line is, and the address and rank that the log names."""
    number, at = spot
    log = logs[number]
    lines = texts[number]
    return Diagnosis(
        line=lines[at].strip(),
        log=log.name,
        node=log.node,
        ip=_ip(lines, at),
        rank=_rank(lines, at),
    )


def _unexplained(
    logs: Sequence[Log], texts: Sequence[Sequence[str]], spots: Sequence[Spot]
) -> Diagnosis:
    """Return the first of these lines, which no cause explains; a symptom is explained."""
    if not spots:
        return Diagnosis()
    number, at = _first(texts, spots)
    line = _line_at(logs, texts, (number, at))
    symptoms = [row for row in table().values() if row.kind == "symptom"]
    row = matches([texts[number][at]], symptoms).get(0)
    if row is None:
        return line
    return replace(line, cause=row.cause, what_to_do=row.what_to_do)


def _errors(lines: Sequence[str], start: int) -> Iterator[int]:
    """Yield the lines that end a Python traceback or announce the end of a native program.

    Lines that only pass on another error, and symptoms, are none of them.
    """
    for at in range(start, len(lines)):
        line = lines[at]
        body = body_of(lines[at])
        is_end = compiled(_EXCEPTION).match(body) or compiled(_NATIVE).match(body)
        is_other = compiled(_WRAPPER).search(body) or compiled(_SYMPTOM).search(line)
        if is_end and not is_other and not is_mild(line):
            yield at


def _loud_lines(texts: Sequence[Sequence[str]], pattern: str) -> list[Spot]:
    return [
        (number, at)
        for number, lines in enumerate(texts)
        for at, line in enumerate(lines)
        if compiled(pattern).search(line) is not None and not is_mild(line)
    ]


def _first(texts: Sequence[Sequence[str]], spots: Iterable[Spot]) -> Spot:
    """Return the earliest line; logs without times count in their order."""
    firsts = dict(sorted(spots, reverse=True))  # the first line of each log
    times = {log: _time(texts[log], at) for log, at in firsts.items()}
    if len(firsts) > 1 and all(times.values()):
        return min(firsts.items(), key=lambda spot: (times[spot[0]] or (), spot[0]))
    return min(firsts.items())


def _time(lines: Sequence[str], at: int) -> tuple[int, ...] | None:
    """Return the last time up to a line as month, day, hour, minute and second."""
    for line in reversed(lines[max(0, at - _MOST_TIMES) : at + 1]):
        stamp = compiled(_TIME).search(line[:120])
        if stamp is None:
            continue
        digits = stamp["mo"] or stamp["mo2"] or stamp["mo4"]
        month = int(digits) if digits else _MONTHS.index(stamp["name"]) // 3 + 1
        day = stamp["d"] or stamp["d2"] or stamp["d3"] or stamp["d4"]
        return month, int(day), int(stamp["h"]), int(stamp["m"]), int(stamp["s"])
    return None


def _ip(lines: Sequence[str], at: int) -> str:
    """Return the address in the line's prefix, or that of the process whose error it is."""
    for line in reversed(lines[max(0, at - _FRAMES) : at + 1]):
        named = compiled(_PLACE).search(line)
        if named is not None:
            return named["ip"] or named["ip2"]
    return ""


def _rank(lines: Sequence[str], at: int) -> int | None:
    """Return the rank in the line's prefix, or the one that torchrun saw failing first."""
    rank = rank_of(lines[at])
    if rank is not None:
        return rank
    is_root = False
    for line in lines:
        is_root = is_root or "Root Cause (first observed failure)" in line
        if not is_root:
            continue
        failed = compiled(_BLOCK).match(line)
        if failed is not None:
            return int(failed[1])
    return None
