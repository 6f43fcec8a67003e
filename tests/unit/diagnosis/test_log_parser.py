"""The parser of logs: prefixes, tracebacks with their chains, and errors of other programs."""

from __future__ import annotations

import json
import time
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.errors.log_parser import LogParser, parse_log
from agent.diagnosis.errors.parsed_error import ErrorKind, LogLevel, ParsedError
from agent.diagnosis.errors.prefixes import clock_text, read_line, seconds_of


def errors_of(text: str) -> list[ParsedError]:
    """Return the errors of a log, the outermost of each chain."""
    return [one.error for one in parse_log(text.split("\n")).occurrences]


def chain_of(text: str) -> list[str]:
    """Return the lines of the only error's chain, the innermost first."""
    (error,) = errors_of(text)
    return [part.line for part in error.chain()]


# --- prefixes ------------------------------------------------------------------------------------

AT = seconds_of("2025-11-26 20:12:10")


class Stated(NamedTuple):
    """What a prefix states."""

    source: tuple[str, ...] = ()
    level: LogLevel = LogLevel.UNSTATED
    at: float | None = None
    rank: int | None = None


ERROR = Stated(level=LogLevel.ERROR)
ERROR_THEN = Stated(level=LogLevel.ERROR, at=AT)
WARNING_THEN = Stated(level=LogLevel.WARNING, at=AT)
INFO_THEN = Stated(level=LogLevel.INFO, at=AT)
RANK_3 = Stated(("rank 3",), rank=3)
PREFIXES = {
    "": Stated(),
    "(Worker pid=7, ip=10.0.0.3) ": Stated(("Worker", "7", "10.0.0.3")),
    "(raylet, ip=10.0.0.3) ": Stated(("raylet",)),
    "(A pid=1) (B pid=2, ip=::1) ": Stated(("A", "1", "B", "2", "::1")),
    "(EngineCore_DP0 pid=71) ERROR 11-26 20:12:10 [core.py:123] ": Stated(
        ("EngineCore_DP0", "71"), LogLevel.ERROR, AT
    ),
    "(VllmWorker rank=5 pid=4) ": Stated(("VllmWorker", "rank 5", "4"), rank=5),
    "(WorkerDict pid=4) [rank12]:[E1126 20:12:10.0 x.cpp:1] [Rank 12] ": Stated(
        ("WorkerDict", "4", "rank 12"), LogLevel.ERROR, AT, 12
    ),
    "[trainer0|3]:": RANK_3,
    "[default3]:": RANK_3,
    "[rank3]: ": RANK_3,
    "[1,3]<stderr>:": RANK_3,
    "3: ": RANK_3,
    "[0] [3] ": Stated(("0] [3",)),
    "❌ ERROR: ": ERROR,
    "⚠️  WARNING - ": Stated(level=LogLevel.WARNING),
    "🚨 [ERROR] ": ERROR,
    "2025-11-26 20:12:10 | 🔥 ERROR | ": ERROR_THEN,
    "node-7: ": Stated(("node-7",)),
    "10.0.0.7: ": Stated(("10.0.0.7",)),
    "trainer-1  | ": Stated(("trainer-1",)),
    "trainer-1  | [rank3]: ": Stated(("trainer-1", "rank 3"), rank=3),
    "2025-11-26 20:12:10 - ": Stated(at=AT),
    "2025-11-26T20:12:10Z ": Stated(at=AT),
    "2025-11-26 20:12:10,000 - ERROR - ": ERROR_THEN,
    "2025-11-26 20:12:10 - a.b - WARNING - ": WARNING_THEN,
    "2025-11-26 20:12:10 | ERROR    | a.b:main:12 - ": ERROR_THEN,
    "[2025-11-26 20:12:10 TP14] ": Stated(at=AT),
    "[2025-11-26 20:12:10 E 9 9] (raylet) a.cc:3084: ": Stated(("raylet",), LogLevel.ERROR, AT),
    "[2025-11-26 20:12:10] [INFO] [a.py:96:log] ": INFO_THEN,
    "2025-11-26 20:12:10\tWARNING a.py:18 -- ": WARNING_THEN,
    "2025-11-26 20:12:10 WARNING ": WARNING_THEN,
    "2025-11-26 20:12:10 INFO ": INFO_THEN,
    "[2025-11-26 20:12:10] ERROR    ": ERROR_THEN,
    "[20:12:10] INFO     ": Stated(level=LogLevel.INFO),
    "[11/26/25 20:12:10] WARNING  ": Stated(level=LogLevel.WARNING),
    "E1126 20:12:10.404 62 a/b.py:869] ": ERROR_THEN,
    "[rank0]:[W1126 20:12:10.186 A.cpp:6] [Rank 0] ": Stated(("rank 0",), LogLevel.WARNING, AT, 0),
    "[INFO|a.py:123] 2025-11-26 20:12:10 >> ": INFO_THEN,
    "11/26/2025 20:12:10 - INFO - __main__ - ": INFO_THEN,
    "[NeMo W 2025-11-26 20:12:10 a:12] ": WARNING_THEN,
    "Nov 26 20:12:10 node3 kernel: ": Stated(("node3",), at=AT),
    "[Wed Nov 26 20:12:10 2025] ": Stated(at=AT),
    "[12345.678901] ": Stated(),
    "ERROR:root:": ERROR,
    "CRITICAL: ": Stated(level=LogLevel.FATAL),
}


@pytest.mark.parametrize(("prefix", "stated"), PREFIXES.items())
def test_prefixes_come_off(prefix: str, stated: Stated) -> None:
    """What they state is kept: process, level, time and rank."""
    line = read_line(f"{prefix}CheckFailed: x [1]")
    assert line.body.removeprefix("kernel: ") == "CheckFailed: x [1]"
    at = seconds_of(line.stamp) if line.stamp else None
    assert Stated(line.source, line.level, at, line.rank) == stated


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: x",
        "torch.distributed.DistBackendError: NCCL error in: ../a.cpp:275, x",
        '  File "/x/a.py", line 3, in f',
        "slurmstepd: error: *** JOB 3 ON n1 CANCELLED AT 2025-11-26T20:12:10 ***",
        "RuntimeError: [enforce fail at inline_container.cc:778] . x",
        "bash: line 3: x: command not found",
        "step:7 - loss:0.1",
        "(7.50 GiB are needed",
        "[1, 2, 3]",
        "[1] [2, 3]",
        "❌ Errors were found",
    ],
)
def test_a_programs_own_words_stay(line: str) -> None:
    """What looks a little like a prefix is none."""
    assert read_line(line).body == line


def test_repeats_are_counted() -> None:
    """Ray states how often it left a line out; that is no part of the line."""
    line = read_line("(f pid=1) ValueError: x [repeated 8x across cluster] (Ray deduplicates logs)")
    assert (line.body, line.repeated) == ("ValueError: x", 8)


def test_times_are_shown_without_their_year() -> None:
    """Many loggers leave it out."""
    for stamp in ("12-31 23:59:59", "01-01 00:00:00", "03-01 04:05:06"):
        assert clock_text(seconds_of(stamp)) == stamp
    assert clock_text(None) == ""
    assert seconds_of("99-99 00:00:00") is None


# --- Python --------------------------------------------------------------------------------------


def test_a_traceback_has_its_frames() -> None:
    """Also frames without a line of code, as Cython and frozen modules print them."""
    (error,) = errors_of(
        "Traceback (most recent call last):\n"
        '  File "<frozen importlib._bootstrap>", line 1, in _load\n'
        '  File "/x/a.py", line 3, in f\n'
        "    g(1)\n"
        "    ~^^^\n"
        "  [Previous line repeated 9 more times]\n"
        '  File "pyarrow/error.pxi", line 91, in pyarrow.lib.check_status\n'
        "pyarrow.lib.ArrowInvalid: Not enough data\n"
        "  in the file\n"
    )
    assert (error.kind, error.module, error.name) == (
        ErrorKind.PYTHON,
        "pyarrow.lib",
        "ArrowInvalid",
    )
    assert error.message == "Not enough data\n  in the file"
    assert [(f.line, f.function, f.code) for f in error.frames] == [
        (1, "_load", ""),
        (3, "f", "g(1)"),
        (91, "pyarrow.lib.check_status", ""),
    ]


TRACE = 'Traceback (most recent call last):\n  File "/x/a.py", line 3, in f\n'


@pytest.mark.parametrize(
    "words",
    [
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ],
)
def test_chains_are_one_error(words: str) -> None:
    """The first exception is the innermost."""
    text = (
        f"{TRACE}KeyError: 'a'\n\n{words}\n\n{TRACE}ValueError: b\n\n{words}\n\n{TRACE}OSError: c"
    )
    assert chain_of(text) == ["KeyError: 'a'", "ValueError: b", "OSError: c"]


def test_what_a_wrapper_of_ray_holds_is_inside() -> None:
    """Nested ones too, with the place of the process that raised the error."""
    text = (
        f"{TRACE}ray.exceptions.RayTaskError(ValueError): ray::A.run() (pid=1, ip=10.0.0.4, x=a)\n"
        '  File "/x/b.py", line 3, in fit\n'
        "ray.exceptions.RayTaskError(ValueError): ray::B.go() (pid=2, ip=10.0.0.5, x=b)\n"
        '  File "/x/c.py", line 3, in go\n'
        "ValueError: the answer is 42"
    )
    (error,) = errors_of(text)
    inner, middle, outer = error.chain()
    assert (inner.line, inner.frames[0].file) == ("ValueError: the answer is 42", "/x/c.py")
    assert (middle.ip, middle.pid, outer.ip, outer.pid) == ("10.0.0.5", 2, "10.0.0.4", 1)


def test_groups_of_exceptions_are_read() -> None:
    """Each exception of a group is one, without the lines beside it."""
    text = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/x/a.py", line 3, in <module>\n'
        "  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "/x/a.py", line 5, in go\n'
        "    | RuntimeError: first\n"
        "    +---------------- 2 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "/x/a.py", line 6, in go\n'
        "    | OSError: second\n"
        "    +------------------------------------\n"
    )
    assert [error.line for error in errors_of(text)][1:] == [
        "RuntimeError: first",
        "OSError: second",
    ]


def test_processes_are_separated() -> None:
    """Their lines are mixed in one log; each traceback is whole."""
    one, two = f"{TRACE}ValueError: one".split("\n"), f"{TRACE}OSError: two".split("\n")
    mixed = []
    for a, b in zip(one, two, strict=True):
        mixed += [f"(W pid=1) {a}", "an ordinary line", f"(W pid=2) {b}", "[rank0]: another"]
    errors = errors_of("\n".join(mixed))
    assert [(e.line, e.pid, len(e.frames)) for e in errors] == [
        ("ValueError: one", 1, 1),
        ("OSError: two", 2, 1),
    ]


def test_what_python_goes_on_from_is_marked() -> None:
    """An exception that Python ignored; a warning with a traceback; another try."""
    ignored = f"Exception ignored in: <function x>\n{TRACE}OSError: a"
    warned = f"WARNING:root:the upload failed\n{TRACE}OSError: b"
    retried = f"{TRACE}OSError: c\nretrying in 3 s"
    found = parse_log(f"{ignored}\n\n{warned}\n\n{retried}".split("\n")).occurrences
    assert [one.is_harmless for one in found] == [True, False, False]
    assert [one.error.level for one in found][1] == LogLevel.WARNING
    assert [one.is_retried for one in found] == [False, False, True]


def test_texts_are_marked() -> None:
    """What a model or a tool wrote is no error of the program; what stands behind it is."""
    for opens, closes in (
        ("[response] Sure:", "[score] 1.0"),
        ("<tool_response>", "</tool_response>"),
        ("```python", "```"),
        ("<|im_start|>assistant", "<|im_end|>"),
    ):
        text = f"{opens}\n{TRACE}OSError: quoted\n{closes}\n{TRACE}OSError: real"
        found = parse_log(text.split("\n")).occurrences
        assert [(one.error.message, one.is_quoted) for one in found] == [
            ("quoted", True),
            ("real", False),
        ]


# --- other programs ------------------------------------------------------------------------------


OTHERS = {
    "F1126 20:12:10.1 12 store.cc:88] Check failed: a < b (9 vs. 8)\n"
    "*** Check failure stack trace: ***\n    @     0x7f3b2c0a9d1d  google::Fail()": (
        ErrorKind.CPP,
        "Check failed: a < b (9 vs. 8)",
    ),
    "terminate called after throwing an instance of 'c10::Error'\n"
    "  what():  CUDA error: an illegal memory access was encountered\n"
    "Exception raised from f at /a/b.cpp:43 (most recent call first):\n"
    "frame #0: c10::Error::Error() + 0x57 (0x7f in /x/libc10.so)": (
        ErrorKind.CPP,
        "what():  CUDA error: an illegal memory access was encountered",
    ),
    "Fatal Python error: Segmentation fault": (ErrorKind.CPP, "Fatal Python error: Seg"),
    "n1:10:20 [0] include/a.h:205 NCCL WARN Cuda failure 2 'x'": (
        ErrorKind.NCCL,
        "NCCL WARN Cuda failure 2 'x'",
    ),
    "50428e4af543:34610:36821 [4] ib_plugin.c:1673 NCCL WARN NET/IB: Got completion": (
        ErrorKind.NCCL,
        "ib_plugin.c:1673 NCCL WARN NET/IB: Got completion",
    ),
    "[9.123456] NVRM: Xid (PCI:0000:14:00): 79, GPU has fallen off": (
        ErrorKind.NVRM,
        "NVRM: Xid (P",
    ),
    "Nov 26 20:12:10 n1 kernel: Out of memory: Killed process 4 (python)": (
        ErrorKind.KERNEL,
        "kernel: Out of",
    ),
    "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0": (
        ErrorKind.SLURM,
        "slurmstepd: e",
    ),
    "/x/train.sh: line 4: torchrunn: command not found": (ErrorKind.SHELL, "/x/train.sh: line 4"),
    "bash: x: No such file or directory": (ErrorKind.SHELL, "bash: x: No such file"),
    "api_server.py: error: unrecognized arguments: --x": (ErrorKind.SHELL, "api_server.py: err"),
    "ERROR:root:no data": (ErrorKind.PLAIN, "no data"),
    "Exception: no data": (ErrorKind.PYTHON, "Exception: no data"),
    "AssertionError": (ErrorKind.PYTHON, "AssertionError"),
}


@pytest.mark.parametrize(
    ("text", "kind", "line"), [(text, *error) for text, error in OTHERS.items()]
)
def test_errors_of_other_programs(text: str, kind: ErrorKind, line: str) -> None:
    """Each form is one error, whose stack belongs to it."""
    (error,) = errors_of(text)
    assert error.kind is kind
    assert error.line.startswith(line)


def test_java_names_the_cause_below() -> None:
    """`Caused by` is inside of what stands above it."""
    text = (
        'Exception in thread "main" org.apache.spark.SparkException: Job aborted\n'
        "\tat org.apache.X.y(X.java:3)\nCaused by: java.io.FileNotFoundException: /x\n\t... 3 more"
    )
    (error,) = errors_of(text)
    assert [part.type for part in error.chain()] == [
        "java.io.FileNotFoundException",
        "org.apache.spark.SparkException",
    ]


def test_json_has_its_message_and_its_traceback() -> None:
    """Only lines of an error's level; the traceback in a field is the cause."""
    line = {"level": "error", "msg": "boom", "exc_info": f"{TRACE}OSError: disk"}
    assert chain_of(json.dumps(line)) == ["OSError: disk", "boom"]
    assert errors_of(json.dumps({**line, "level": "info"})) == []
    assert errors_of('{"prompt": "Traceback (most recent call last):", "error": "x"}') == []


def test_ordinary_lines_are_no_errors() -> None:
    """Words of errors in the middle of a sentence, levels below an error, advice."""
    for line in (
        "INFO: no errors, 0 failed",
        "If you see `torch.OutOfMemoryError`, lower the batch size",
        "WARNING: the retry failed",
        "srun: job 12 queued and waiting for resources",
        "n1:1:2 [0] NCCL INFO failed to load the plugin",
        "NVRM: gpuClearFbhubPoisonIntrForBug2924523_GA100",
        "/x/a.py:3: UserWarning: this failed",
    ):
        assert errors_of(line) == [], line


# --- hostile input -------------------------------------------------------------------------------

_PIECES = st.sampled_from(
    [
        *TRACE.split("\n"),
        *("", " ", "\t", "    code", "ValueError: x", "  | x", "}", "Caused by: ", "NCCL WARN x"),
        *("(A pid=1) ", "[rank3]: ", "what():  x", "terminate called after", '{"level": "error"'),
        *("step 3/40 x", "[response]", "```", "Last error:", "kernel: ", "\x00\ufffd"),
        "During handling of the above exception, another exception occurred:",
        "  + Exception Group Traceback (most recent call last):",
        "ray.exceptions.RayTaskError(RayTaskError(A)): ray::A.f() (pid=1, ip=::1)",
    ]
)


@given(st.lists(st.lists(_PIECES, max_size=3).map("".join) | st.text(max_size=60), max_size=40))
def test_any_lines_can_be_parsed(lines: list[str]) -> None:
    """Whatever a log holds: errors in the order of their lines, and none is lost by a piece."""
    whole = parse_log(lines)
    parser = LogParser()
    for line in lines:
        parser.feed(line)
        parser.result()
    parser.close()
    assert parser.result() == whole
    numbers = [one.error.number for one in whole.occurrences]
    assert numbers == sorted(numbers)
    assert all(0 <= number < len(lines) for number in numbers)
    assert all("\n" not in part.line for one in whole.occurrences for part in one.error.chain())


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "lines",
    [
        ["x" * 10_000_000],
        ["(a pid=1) " * 100_000],
        ["[rank0]:" * 100_000],
        ['  File "' + "a" * 1_000_000],
        ["{" * 30_000 + '"level": "error"'],
        ['{"level": "error", "msg": ' + "[" * 30_000],
        ["\x1b[31m" * 100_000],
        ["\x00\xff\ufffd" * 100_000],
        [TRACE.split("\n")[1]] * 20_000,
        [*TRACE.split("\n")[:2], "E: x", "", "During handling of the above exception, another"]
        * 4_000,
        [f"(W pid={number}) Traceback (most recent call last):" for number in range(20_000)],
        ["ray.exceptions.RayTaskError(A): ray::A.f() (pid=1)", '  File "/x", line 1'] * 5_000,
        ["ValueError: " + "a: " * 600] * 5_000,
        ["Error " * 300] * 2_000,
        ["A.B" * 600] * 2_000,
        ["2025-11-26 20:12:10 - " * 80] * 2_000,
        ["sh: " * 400, "a: error: " * 200, "/" * 2_000, "=" * 2_000, " " * 2_000] * 200,
    ],
    ids=range(17),
)
def test_hostile_lines_cost_little(lines: list[str]) -> None:
    """Endless lines, deep chains, many processes, and what expressions may backtrack on."""
    began = time.process_time()
    parsed = parse_log(lines)
    assert time.process_time() - began < 15  # a twentieth of that on an idle machine
    assert len(parsed.occurrences) <= 2_600
    assert all(len([*one.error.chain()]) <= 30 for one in parsed.occurrences)
    assert all(len(one.error.text) < 10_000 for one in parsed.occurrences)


def test_each_warning_among_a_pod_s_events_is_an_error() -> None:
    """Except those that Kubernetes overcomes by itself most of the time."""
    event = "  Warning  {}  73s   kubelet   Allocate failed due to rpc error"
    for reason, is_error in (("UnexpectedAdmissionError", True), ("Unhealthy", False)):
        found = parse_log([event.format(reason)]).occurrences
        assert any(one.error.level >= LogLevel.ERROR for one in found) == is_error


@pytest.mark.parametrize(
    ("below", "message"),
    [
        (":\n\nno such device: mlx5_9\nnext", ":\nno such device: mlx5_9"),
        ("\n\nReason: no such device\nnext", "\nReason: no such device"),
        ("\n\nThe run goes on\nnext", ""),
    ],
    ids=["below a title", "called a reason", "another line"],
)
def test_a_reason_may_stand_below_an_empty_line(below: str, message: str) -> None:
    """Below a title, or where the line says that it is one."""
    (error,) = errors_of(f"{TRACE}RuntimeError: cannot load the engine{below}")
    assert error.message == f"cannot load the engine{message}"


def test_the_hub_s_own_words_stand_below_an_empty_line() -> None:
    """They belong to the error, and are shown where its line has only the request's number."""
    text = (
        "huggingface_hub.errors.HfHubHTTPError: (Request ID: Root=1-67;ab)\n\n403 Forbidden: "
        "Private repository storage limit reached.\nCannot access content at: https://x.\n\n\n\nnext"
    )
    (error,) = errors_of(text)
    assert error.line == "403 Forbidden: Private repository storage limit reached."
    assert "Cannot access content" in error.message
    assert "next" not in error.message
    (error,) = errors_of("huggingface_hub.errors.GatedRepoError: 403 Client Error.\n\nnext")
    assert error.message == "403 Client Error."
