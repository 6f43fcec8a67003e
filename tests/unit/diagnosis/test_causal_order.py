"""The first cause among the errors of all nodes, and what only follows from it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agent.diagnosis.find_cause import Diagnosis, diagnose_logs, weighed
from agent.diagnosis.order import REASONS, Rung
from agent.diagnosis.rows import table
from agent.diagnosis.searched_log import Log


def raised(error: str, function: str = "f", file: str = "/x/a.py", code: str = "g()") -> str:
    """Return a traceback of an error, which a caller may have caught."""
    frame = f'  File "{file}", line 3, in {function}\n    {code}'
    return f"Traceback (most recent call last):\n{frame}\n{error}"


def uncaught(error: str) -> str:
    """Return a traceback of an error that nobody caught."""
    return raised(error, "<module>")


def printed_by(prefix: str, text: str) -> str:
    """Return a text with a prefix before each line."""
    return "\n".join(f"{prefix}{line}" for line in text.split("\n"))


def log(*lines: str) -> str:
    """Return a log of these lines or texts."""
    return "\n".join(lines)


def cause(*texts: str) -> Diagnosis:
    """Return the diagnosis of the logs of some nodes."""
    return diagnose_logs([Log(f"n{at}", "job.log", text) for at, text in enumerate(texts)])


def answer(*texts: str) -> str:
    """Return the key of the row that explains the logs of some nodes, else the quoted line."""
    found = cause(*texts)
    return found.key or found.line


Promises = dict[str, dict[str, str]]
"""Of each promise, logs with their answers."""
DIVISION = "ZeroDivisionError: division by zero"
REAL = raised(DIVISION)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
GONE = "NCCL error: remote process exited or there was a network error"
WATCHDOG = "[rank0]:[E1126 10:00:00.1 P:6] [Rank 0] Watchdog caught collective operation timeout: W"
RANK_FAILED = "E1126 20:12:10.1 2 api.py:869] failed (exitcode: 1)"
RSYNC = 'rsync: [sender] link_stat "/data/a" failed: No such file or directory (2)'


@pytest.mark.parametrize(
    "consequence",
    [
        f"[rank0]: torch.distributed.DistBackendError: {GONE}",
        WATCHDOG,
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected",
        "n0:1:2 [0] socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n1",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "srun: error: n0: task 0: Exited with exit code 1",
        "slurmstepd: error: *** STEP 12.0 ON n0 CANCELLED AT 2025-11-26T10:00:00 ***",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED",
        "E1126 20:12:10.1 2 api.py:869] failed (exitcode: 1) local_rank: 2 (pid: 7) of b",
    ],
)
def test_what_follows_from_an_end_is_no_cause(consequence: str) -> None:
    """On either side of the error, and on another node."""
    for texts in ((f"{consequence}\n{REAL}",), (f"{REAL}\n{consequence}",), (consequence, REAL)):
        assert answer(*texts) == DIVISION, texts


ELASTIC = "torch/distributed/elastic"
NO_FILE = "no error file defined for parent, to copy child error file (/tmp/torchelastic_u/a.json)"


@pytest.mark.parametrize(
    ("function", "logged"),
    [
        ("<module>", "2026-11-27 17:54:08,137 - launcher - ERROR - cannot copy the child's report"),
        ("f", f"E1127 17:54:08.1 7 {ELASTIC}/multiprocessing/errors/error_handler.py:5] {NO_FILE}"),
        ("f", "ERROR:torch.distributed.elastic.agent.server.api:Error waiting on exit barrier. Af"),
    ],
    ids=["a logger's unknown line", "torchrun's error file", "torchrun's exit barrier"],
)
def test_what_is_logged_beside_an_end_is_no_cause(function: str, logged: str) -> None:
    """A row that explains little explains more; torchrun only repeats how its ranks ended."""
    no_rewards = "http://a:5000/get_reward returned no rewards for 1 s: 500 x"
    ended = raised(f"pod_agent_rehearsal.RewardError: {no_rewards}", function)
    assert answer(f"{ended}\n{logged}") == "reward server"
    assert answer(f"{logged}\nstarting\n{ended}") == "reward server"


def test_the_first_in_time_counts() -> None:
    """Between nodes, by their clocks, whose offsets are known; else by the order of the logs."""
    late = "2025-11-26 10:00:05,000 - a - ERROR - ValueError: late"
    early = "2025-11-26 10:00:01,000 - a - ERROR - ValueError: early"
    assert cause(late, early).line == "ValueError: early"
    logs = [Log("n0", "job.log", late), Log("n1", "job.log", early, clock_ahead=-10.0)]
    assert diagnose_logs(logs).line == "ValueError: late"
    logs = [Log("n0", "job.log", "ValueError: b", at=9.0), Log("n1", "x", "OSError: a", at=8.0)]
    assert diagnose_logs(logs).line == "OSError: a"
    assert cause("ValueError: b", "OSError: a").line == "ValueError: b"


@pytest.mark.parametrize(
    "line",
    [
        "socket.cc:1 NCCL WARN socketStartConnect: Connect to 10.0.0.4<1> failed : refused",
        "NCCL WARN NET/IB : Got completion from peer 10.0.0.4<1> with error 12, opcode 0",
    ],
)
def test_a_lost_connection_is_less_than_a_cause(line: str) -> None:
    """A rank that ended leaves its peers with failed connections, whichever comes first."""
    assert answer(line, OOM) == "GPU memory"
    assert answer(line, WATCHDOG) in {"NCCL connect", "InfiniBand"}
    first = 'Traceback:\n  File "x.py", line 1\n    go()\nRuntimeError: shapes differ'
    assert answer(f"{first}\n{line}") == "RuntimeError: shapes differ"


def test_the_nearer_log_is_asked_first() -> None:
    """The job's output comes before Ray's log."""
    near = Log("", "job.log", "RuntimeError: CUDA out of memory", of_ray=True)
    far = Log("", "raylet.out", "Failed accept4: Too many open files", of_ray=True)
    assert diagnose_logs([near, far]).key == "GPU memory"
    assert diagnose_logs([far, near]).key == "open files"


def test_no_log_no_diagnosis() -> None:
    """Without logs, or with empty ones, nothing is said."""
    for found in (cause(), cause(""), cause("\n\n")):
        assert found == Diagnosis()
        assert found.remedy() == ""


# --- one log --------------------------------------------------------------------------------------

SHARDS = "\n".join(f"loaded shard {n} of 200" for n in range(150))
PARTS = "\n".join(f"loaded part {part}" for part in range(30))
FEW_LINES = "reading\nreading\nreading\nreading"
STEP = "step:1 - loss:0.1"
ENDED = uncaught(DIVISION)
REAL_VALUE = raised("ValueError: real")
UNCAUGHT_42 = uncaught("ValueError: 42")
LOADED_42 = log("loaded", UNCAUGHT_42)
LOADED_REAL = log("loaded", REAL_VALUE)
KILLED_STEP = "slurmstepd: error: Detected 1 oom_kill event in StepId=83.0."
LOGGED_OOM = f"ERROR 11-26 10:00:00 [a.py:3] {OOM.partition(': ')[2]}"
OPEN_FILES = "OSError: [Errno 24] Too many open files"
SHAPES = raised("RuntimeError: shapes differ")
LIBRARY = (
    "Could not load library libnvrtc.so.11.2. Error: libnvrtc.so.11.2: cannot open shared "
    "object file: No such file or directory"
)
BARS = [f"Epoch 0:   1%|1   | {at}/2500 [00:04<1:36:38,  2.0s/it, loss=1.5]" for at in (7, 8, 9)]
NOT_JSON = raised("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)")
STORE_FULL = (
    "ray.exceptions.ObjectStoreFullError: Failed to put object ff in object store because it is "
    "full."
)
TIME_LIMIT = (
    "slurmstepd: error: *** STEP 12.0 ON n0 CANCELLED AT 2025-11-26T14:00:00 DUE TO TIME LIMIT ***"
)
NO_MODULE = "ModuleNotFoundError: No module named 'sympyy'"
BY_MODEL = raised(NO_MODULE, "<module>", "/tmp/tmpz0c5t9ra/tmpm31v7y_k.py", "import sympyy")
NO_FLASH = raised(
    "ModuleNotFoundError: No module named 'flash_attn'", "push", code="api.upload_folder(folder)"
)

SURVIVED: Promises = {
    "a count of no failures is no error; with any it may be one": {
        log("Tests Failed: 0", f"[Trainer-0/1] {OOM}"): "GPU memory",
        "Tests Failed: 3": "Tests Failed: 3",
    },
    "a tool's answer that was no JSON is not why a collective timed out long after it": {
        log(NOT_JSON, SHARDS, WATCHDOG): "Watchdog caught collective operation timeout: W",
        log(NOT_JSON, WATCHDOG): "not JSON",
    },
    "what explains an end counts before what only follows from it, and the first of two": {
        log(OOM, WATCHDOG): "GPU memory",
        log(OOM, OPEN_FILES): "GPU memory",
        log(OPEN_FILES, OOM): "open files",
        log("OSError: [Errno 98] Address already in use", SHAPES): "port taken",
    },
    "the kernel's lines come after what they lead to": {
        log(
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "[9.1] NVRM: Xid (PCI:0000:14:00): 79, GPU has fallen off the bus.",
        ): "Xid",
    },
    "a killed job says nothing: what it had survived is only quoted": {
        log(raised(OOM), SHARDS): OOM,
        log(raised(OOM), SHARDS, RANK_FAILED): "GPU memory",
        log(raised(OOM), "loaded shard 1 of 2"): "GPU memory",
    },
    "a logger's line is of much that is handled, also where something else ends later": {
        log(LOGGED_OOM, SHARDS, RANK_FAILED): "failed (exitcode: 1)",
        log(LOGGED_OOM, RANK_FAILED): "GPU memory",
        "[rank3]:[E1126 10:00:00.1 a.cpp:6] OSError: [Errno 28] No space left": "disk full",
    },
    "Slurm states a kill of one step or process: what fails at once fails by it": {
        log(KILLED_STEP, PARTS, REAL_VALUE): "ValueError: real",
        log(KILLED_STEP, REAL_VALUE): "memory of the Slurm step",
        log(KILLED_STEP, PARTS): "memory of the Slurm step",
    },
    "a bar that moves on from an error makes it no cause; the same step once more is none": {
        log(LIBRARY, *BARS, REAL): DIVISION,
        log(BARS[0], BARS[1], LIBRARY, BARS[1], BARS[2], ""): "CUDA library",
    },
    "Ray spills on after a full disk, until its object store is full": {
        log("(raylet) OSError: [Errno 28] No space left on device", STEP, STORE_FULL): "disk full",
        log(STEP, STORE_FULL): "object store",
    },
    "a sandbox runs what a model wrote in a folder of Python's tempfile": {
        log(
            BY_MODEL,
            *(f"step:{at} - loss:0.3" for at in range(30)),
            raised("KeyboardInterrupt"),
        ): "KeyboardInterrupt",
        log(BY_MODEL, REAL): DIVISION,
        raised(NO_MODULE, "<module>", "/tmp/train.py", "import sympyy"): "missing module",
    },
    "the other ranks waited for a failed one until the scheduler ended the job": {
        log(ENDED, TIME_LIMIT): DIVISION,
        log(STEP, TIME_LIMIT, ENDED): "time limit",
        log(ENDED, STEP, "step:2 - loss:0.1", TIME_LIMIT): "time limit",
    },
    "a line behind an error may name the code that failed, by its function or its module": {
        log(NO_FLASH, "skipping upload", LOADED_42): "ValueError: 42",
        log(NO_FLASH, "flash_attn is not there, falling back", LOADED_42): "ValueError: 42",
        log(NO_FLASH, "retrying the tokenizer", LOADED_42): "missing module",
    },
}

REFUSED = "httpx.ConnectError: [Errno 111] Connection refused"
EIGHT_SHARDS = "\n".join(f"loaded shard {number}" for number in range(8))
INFORMS = "INFO 11-26 20:12:10 [x.py:1] Cannot use FlashAttention: it is not found"
WARNS = INFORMS.replace("INFO", "WARNING")
NO_IMPORT = "WARNING 11-26 10:00:00 [a.py:3] Failed to import x: ModuleNotFoundError('x')"
NO_IMPORT_OF_IT = NO_IMPORT.replace("ModuleNotFound", "ZeroDivision")
NO_PLUGIN = "WARNING 11-26 10:00:00 [a.py:3] could not load the plugin"
POSSIBLE = "WARNING 11-26 20:12:10 [x.py:1] which may cause numerical errors nan or inf"
ASKED = raised("tenacity.RetryError: RetryError[x]", "oracle_reward")
NO_GCS = "2026-08-12 11:36:28,039\tWARNING utils.py:1515 -- Unable to connect to GCS"
RUNPY = raised("ModuleNotFoundError: No module named 'x'", "_run_module_as_main", "<frozen runpy>")
REFUSES = "The sandbox refused the code: 3 workers left"
COLORED = "\x1b[36m(WorkerDict pid=7, ip=10.0.0.3)\x1b[0m ModuleNotFoundError: No module named 'a'"
KUBELET = "Nov 26 10:00:00 node-1 kubelet[123]: E1126 10:00:00.1     123 pods.go:4] out of pods"
IGNORES_METHOD = "Exception ignored in: <function Tracker.__del__ at 0x7>"
IGNORES_GENERATOR = "Exception ignored in: <generator object h at 0x7>"
CODE = """\
[rank3]:   File "/x/train.py", line 9, in main
[rank3]:     raise RuntimeError('CUDA error: out of memory')"""
CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
DIRECT_CAUSE = "\nThe above exception was the direct cause of the following exception:\n"
LOADER = "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"
NO_CHECKPOINT = "could not load the checkpoint"
PROTOCOL = "[Errno 71] Protocol error: '/ckpt/a'"

IN_PYTHON: Promises = {
    "a warning above a traceback that nobody caught is not its own": {
        log(NO_GCS, RUNPY): "missing module",
    },
    "frames before a bare exception show who asked, also with other lines in between": {
        log(ASKED, EIGHT_SHARDS, REFUSED): "reward server",
        log(EIGHT_SHARDS, REFUSED): REFUSED,
    },
    "a raised warning ends a traceback below a frame that warns; another is of another process": {
        raised("FutureWarning: Tip: in future versions"): "",
        log(raised("FutureWarning: x", code='warnings.warn("x", FutureWarning)'), REAL): DIVISION,
    },
    "a line that informs announces no traceback, and a warning none that nobody caught": {
        log(INFORMS, raised(OOM)): "GPU memory",
        log(WARNS, uncaught(OOM)): "GPU memory",
        log(WARNS, raised(OOM)): OOM,
        log(POSSIBLE, raised(OOM)): "GPU memory",
        log(NO_PLUGIN, REAL, LOADED_REAL): "ValueError: real",
    },
    "a warning that states another exception announces no traceback": {
        log(NO_IMPORT, REAL, LOADED_REAL): DIVISION,
        log(NO_IMPORT_OF_IT, REAL, LOADED_REAL): "ValueError: real",
    },
    "Python ignores an exception in the function that it names; another is there by chance": {
        log(IGNORES_METHOD, REAL, "last"): DIVISION,
        log(IGNORES_GENERATOR, REAL, "last"): DIVISION,
        log(IGNORES_METHOD, raised(DIVISION, "__del__"), REAL_VALUE): "ValueError: real",
        log(IGNORES_GENERATOR, raised(DIVISION, "h"), REAL_VALUE): "ValueError: real",
    },
    "a traceback's line of code quotes a message; the message itself comes below": {
        CODE: "",
        log(CODE, "[rank3]: RuntimeError: CUDA error: out of memory"): "GPU memory",
    },
    "a traceback that was cut off yields to the next one": {
        log(uncaught("Exception ignored in: <function f at 0x7f>"), raised("OSError: x")): "",
    },
    "a title takes the lines below it, but none that is an error by itself": {
        log(CHILD_FAILED, RSYNC): CHILD_FAILED,
        log(raised("KeyboardInterrupt"), RSYNC): "KeyboardInterrupt",
    },
    "an exception without a message is a wait that ended; the next one says for what": {
        log(raised("_queue.Empty"), DIRECT_CAUSE, raised(LOADER)): LOADER,
    },
    "a line in JSON states its level, by a name or a number, and has a traceback as a field": {
        r'{"log":"ValueError: bad magic\n","stream":"stderr","time":"x"}': "ValueError: bad magic",
        json.dumps({"level": 50, "time": 17, "msg": REFUSES}): REFUSES,
        json.dumps({"levelname": "ERROR", "message": REAL_VALUE}): "ValueError: real",
    },
    "prefixes come off": {
        COLORED: "missing module",
        KUBELET: "out of pods",
        log(
            "[rank=0] Traceback (most recent call last):",
            "[rank=1] Traceback (most recent call last):",
            '[rank=0]   File "/app/a.py", line 3, in f',
            '[rank=1]   File "/a.py", line 3, in f',
            "[rank=0] ValueError: 7 is odd",
            "[rank=1] ValueError: 7 is odd",
        ): "ValueError: 7 is odd",
    },
    "a program prints the text of an exception below its own words about it": {
        log(NO_CHECKPOINT, PROTOCOL): PROTOCOL,
        log(NO_CHECKPOINT, "reading on", PROTOCOL): NO_CHECKPOINT,
    },
}

NETWORK = "node-1:9:9 [0] init.cc:100 NCCL WARN Error: network IB not found."
BAD_ROW = raised("ValueError: bad row")
WHAT = "what():  owning_ptr == NullType::singleton() INTERNAL ASSERT FAILED at x.h:348"
CRASH = f"terminate called after throwing an instance of 'c10::Error'\n  {WHAT}"
SEGFAULT = "(Worker_TP1 pid=452) !!!!!!! Segfault encountered !!!!!!!"
CANCELLED = printed_by("(EngineCore pid=388) ", raised("RuntimeError: cancelled"))
IBRC = "/x/nvshmem/ibrc.cpp:1442: NULL value get_device_list failed"
DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
VERSIONS = "the versions of two packages differ"
NO_CREDENTIALS = "fatal error: Unable to locate credentials"
UPLOAD = "upload failed: ./out to s3://b/out Unable to locate credentials"

OTHER_PROGRAMS: Promises = {
    "a client only states that a server did not answer, or answered with an error": {
        log(OOM, FEW_LINES, uncaught("RuntimeError: the judge answered 500")): "GPU memory",
        log(
            "    0: request error: (429 Too Many Requests) for url (https://huggingface.co/lab/m)",
            FEW_LINES,
            uncaught("TimeoutError: http://10.8.0.11:8085/health does not answer after 180 s"),
        ): "rate limit",
        log(raised("urllib.error.HTTPError: HTTP Error 500: Internal Error"), REAL): DIVISION,
    },
    "NCCL prints that it cannot open a device, and then that its network is not there": {
        NETWORK: "NCCL_NET",
        log("n1:9:9 [0] NCCL WARN NET/IB : Unable to open device mlx5_0", NETWORK): "RDMA device",
    },
    "an exception just before a crash of its process came first": {
        log(BAD_ROW, CRASH): "ValueError: bad row",
        log(BAD_ROW, FEW_LINES, CRASH): WHAT,
        log(printed_by("[rank1]: ", BAD_ROW), CRASH): WHAT,
    },
    "a crash of another process counts before an unknown error, but no late one": {
        log(SEGFAULT, CANCELLED): "crash",
        log(CANCELLED, SEGFAULT): "RuntimeError: cancelled",
        log(SEGFAULT, printed_by("(EngineCore pid=388) ", raised(OOM))): "GPU memory of the engine",
    },
    "native code says why before it crashes, in an error with its source file": {
        log(IBRC, "Segmentation fault (core dumped)"): IBRC,
    },
    "what a logger prints behind a consequence did not lead to it": {
        log(DIED, f"ERROR: {VERSIONS}"): DIED,
        log(f"ERROR: {VERSIONS}", DIED): VERSIONS,
    },
    "the AWS CLI prints `fatal error:`, as Go's runtime does, and a job may go on": {
        log(NO_CREDENTIALS, PARTS, REAL_VALUE): "ValueError: real",
        NO_CREDENTIALS: "cloud credentials",
    },
    "what a script says behind an uncaught exception explains it not; before it the same does": {
        log(UNCAUGHT_42, UPLOAD): "ValueError: 42",
        log(UPLOAD, UNCAUGHT_42): "cloud credentials",
    },
}

LOGS = [
    pytest.param(text, expected, id=f"{promise}-{at}")
    for promise, logs in {**SURVIVED, **IN_PYTHON, **OTHER_PROGRAMS}.items()
    for at, (text, expected) in enumerate(logs.items())
]


@pytest.mark.parametrize(("text", "expected"), LOGS)
def test_a_log_has_its_cause(text: str, expected: str) -> None:
    """The row that explains it, or the line that is quoted."""
    assert answer(text) == expected


def test_what_is_said_in_passing_is_no_cause_in_a_jobs_log() -> None:
    """Jobs that go on print it too; a Ray that did not start says so why."""
    said = "[W socket.cpp:697] Unable to resolve hostname. Using the loopback address as fallback."
    text = f"{said}\n{CHILD_FAILED} train.py FAILED"
    assert cause(text).row is None
    assert diagnose_logs([Log("", "raylet.out", text, of_ray=True)]).key == "Gloo"


@pytest.mark.parametrize(
    "ending",
    [
        "Run failed with error code CONTAINER_EXITED_WITH_ERROR. Check the logs",
        "2025-11-26 10:00:00,000 - a - ERROR - Killing remaining processes and exiting...",
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Aborted.",
        "ERROR: Task train failed",
    ],
)
def test_a_line_that_only_states_an_end_is_no_cause(ending: str) -> None:
    """Launchers print it about any failure; without another line it is quoted."""
    assert cause(f"{ending}\nValueError: real").line == "ValueError: real"
    assert cause(ending).line


@pytest.mark.parametrize("message", ["engine init failed", "register failed, ret_value: -1"])
def test_native_code_says_why_an_exception_only_states_a_failure(message: str) -> None:
    """Libraries in C++ log the reason, and their bindings for Python only raise that it failed."""
    why = "device mlx5_9 has no active port"
    native = f"E0605 10:48:27.885119 10136 transport.cpp:203] {why}"
    states = f"RuntimeError: {message}"
    assert answer(f"{native}\n{raised(states)}") == why
    assert answer(f"{native}\n{PARTS}\n{raised(states)}") == states
    reason = "RuntimeError: the model has no head"
    assert answer(f"{native}\n{raised(reason)}") == reason


SOCKET = "[rank0]:[W215 03:22:50.1 socket.cpp:200] [c10d] The socket cannot be initialized"


@pytest.mark.parametrize(
    "text",
    [f"{SOCKET}\n{printed_by('[rank0]: ', REAL)}", f"{NO_IMPORT}\n{REAL}"],
    ids=["C++ prints no traceback of Python's", "a warning that states another exception is whole"],
)
def test_a_traceback_below_a_warning_of_something_else_is_an_error(text: str) -> None:
    """A logger of Python announces one."""
    found = cause(text)
    assert (found.line, found.is_marked) == (DIVISION, True)


MEGATRON = "(MegatronPolicyWorker[rank=5] pid=17, ip=10.0.0.9) "
SURVIVED_VALUE = printed_by("(RewardManager pid=3) ", raised("ValueError: cannot parse the answer"))
BATCHES = "\n".join(f"(RewardManager pid=3) scored batch {at}" for at in range(20))
BY_ACTOR = printed_by("(W pid=9, ip=10.0.0.9) ", REAL)
DRIVER = (
    f"{raised('ray.exceptions.RayTaskError(ZeroDivisionError): ray::W.f() (pid=9, ip=10.0.0.9)')}\n"
    f'  File "/x/w.py", line 4, in f\n{DIVISION}'
)
NESTED_TASKS = """\
ray.exceptions.RayTaskError(ValueError): ray::TaskRunner.run() (pid=1, ip=10.0.0.4, actor_id=a)
  File "/x/trainer.py", line 3, in fit
ray.exceptions.RayTaskError(ValueError): ray::WorkerDict.go() (pid=2, ip=10.0.0.9, actor_id=b)
  File "/x/worker.py", line 3, in go
ValueError: the answer is 42"""
KILLED_TASK = (
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    "Memory on the node (IP: 10.0.0.9, ID: ab) where the task was running was 9GB"
)


@pytest.mark.parametrize(
    ("text", "expected", "rank"),
    [
        (printed_by(MEGATRON, REAL), DIVISION, 5),
        (raised(KILLED_TASK), "memory", None),
        (f"{SURVIVED_VALUE}\n{BATCHES}\n{BY_ACTOR}\n{DRIVER}", DIVISION, None),
        (f"{NESTED_TASKS}\n{CHILD_FAILED}\n", "ValueError: the answer is 42", None),
    ],
    ids=[
        *("NeMo-RL names workers by rank", "a node below the line", "what an actor went on from"),
        "the innermost of nested tasks",
    ],
)
def test_the_process_of_a_cause_is_read(text: str, expected: str, rank: int | None) -> None:
    """Its address and its rank, wherever they stand."""
    found = cause(text)
    assert (found.key or found.line, found.rank, found.ip) == (expected, rank, "10.0.0.9")


@pytest.mark.parametrize(
    "trap",
    [
        f"(T pid=1) [response] I ran it:\n{printed_by('(T pid=1) ', OOM)}\n(T pid=1) [score] 0.0",
        f"<tool_response>\n{raised(OOM)}\n</tool_response>",
        f"If you see `{OOM}`, lower the batch size.",
        f"{OOM}, retrying with half of the batch",
        f"{raised(OOM)}\nstep 4/40 mean reward 0.61\nstep 5/40 mean reward 0.61",
        f"WARNING: {OOM}",
        f"[rank0]:[W1126 10:00:00.1 P.cpp:6] {OOM}",
        f"Namespace(hint='{OOM}')",
        f'{{"prompt": "why?", "response": "{OOM}"}}',
        f"│ prompt │ {OOM} │",
        f"Exception ignored in: <function f>\n{raised(OOM)}\n",
        "[Sun Nov 23 09:00:00 2025] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
    ],
)
def test_scary_lines_are_no_cause(trap: str) -> None:
    """Texts, warnings, what was overcome, and what the kernel printed days before the run."""
    began = "2025-11-26 10:00:01,000 - a - INFO - begun"
    goes_on = "\n".join(f"loading {at}" for at in range(9))
    assert answer(f"{trap}\n{began}\n{goes_on}\n{REAL}") == DIVISION
    assert answer(f"{trap}\n{began}\n{goes_on}", f"{began}\n{REAL}") == DIVISION
    assert cause(f"{began}\n{trap}\n{goes_on}").key in {"", "Xid"}


def test_an_assertion_without_a_message_is_quoted_with_its_code() -> None:
    """Its line of code is all that says what did not hold."""
    found = cause(raised("AssertionError", code="assert len(rows) == groups"))
    assert (found.key, found.line) == ("", "AssertionError")
    assert "`assert len(rows) == groups`, in /x/a.py:3" in found.remedy()


# --- what is said of a cause ----------------------------------------------------------------------


def test_an_unknown_error_is_quoted_with_its_place_and_time() -> None:
    """Without its prefixes, cut at its end, with the lines before it on the first page."""
    long = "ValueError: " + "the answer is 42, " * 40
    before = [f"2025-11-26 10:00:0{at},000 - a - INFO - line {at}" for at in range(6)]
    text = "\n".join([*before, f"(W pid=3) [rank3]: 2025-11-26 10:00:07,000 - a - ERROR - {long}"])
    page = cause(text).page()
    remedy = cause(text).remedy()
    start = "Look at the first error on n0 (rank 3), in job.log at 11-26 10:00:07: "
    assert remedy.startswith(f"{start}'ValueError: the answer is 42, ")
    assert remedy.endswith("…': its cause is unknown to pod-agent")
    assert page.startswith(remedy)
    text = "\n".join([*before, f"{raised('ValueError: short')}"])
    shown = cause(text).page().split("\n")
    assert shown[-6:] == [*(f"    line {at}" for at in range(2, 6)), "    ValueError: short", ""]


def test_a_symptom_alone_is_no_cause() -> None:
    """It is named with what to look for, and nothing is asserted."""
    found = cause(WATCHDOG)
    assert found.row is None
    assert found.remedy().startswith("unknown to pod-agent on n0 (rank 0): a collective ")
    assert "Look for the rank that is silent" in found.remedy()


def test_two_that_remain_possible_are_both_named() -> None:
    """A killed process may have had two reasons; a line of the kernel says which."""
    killed = "E0804 15:34:58.362 api.py:869] failed (exitcode: -9) local_rank: 0 (pid: 4)"
    found = cause(killed)
    assert found.row is not None
    assert found.row.labels == ("host_memory_kernel", "preempted")
    assert "a process got SIGKILL: the node's memory ran out, or " in found.remedy()
    known = cause(f"{killed}\nkernel: Out of memory: Killed process 4 (python) total-vm:2kB")
    assert known.row is not None
    assert known.row.labels == ("host_memory_kernel",)


def test_no_sentence_is_too_long_to_read() -> None:
    """Whatever a row states: sentences at its end are left out."""
    for row in table().values():
        for words in row.words if row.kind == "cause" else ():
            remedy = cause("", f"[rank9]: {words.example}").remedy()
            before, _, _ = remedy.partition(" It shows in job.log")
            assert len(before) <= 241, row.key


def test_a_known_cause_has_its_place_and_remedy_before_the_line() -> None:
    """What happened, where, what to do; then the line."""
    remedy = cause("", f"[rank9]: {OOM}").remedy()
    before, quote = remedy.split(" It shows in job.log: ")
    assert before.startswith("a GPU ran out of memory on n1 (rank 9). Take a smaller")
    assert len(before) <= 240
    assert quote == repr(OOM)


# --- the line that says why -----------------------------------------------------------------------

NO_RETRIEVER = (
    "requests.exceptions.ConnectionError: HTTPConnectionPool(host='127.0.0.1', port=8000): Max "
    "retries exceeded with url: /retrieve (Caused by NewConnectionError('[Errno 111] refused'))"
)
STEPS = "\n".join(f"step {number}/40 reward 0.5" for number in range(7, 20))
ENDS = {
    "a program prints why below the line that only says that something failed": """\
slurmstepd: error: pyxis: container start failed with error code: 1
slurmstepd: error: pyxis: printing enroot log file:
> slurmstepd: error: pyxis:     [ERROR] Failed to import the image: bad header
slurmstepd: error: pyxis: couldn't start container
slurmstepd: error: Failed to invoke spank plugin stack
srun: error: node-2: task 0: Exited with exit code 1""",
    "a folder that is not there is another one": """\
slurmstepd: error: couldn't chdir to `/home/run': No such file or directory: going \
to /tmp instead
> slurmstepd: error: execve(): train: Exec format error""",
    "a hook of a container": """\
docker: Error response from daemon: failed task: OCI runtime create failed: error during \
container init: error running prestart hook #0: exit status 1
>container toolkit> nvidia-container-cli: mount error: open failed: /proc/driver""",
    "a container that fails is restarted later": """\
  Warning  BackOff  1m  kubelet  Back-off restarting failed container
  > Warning  Failed   5m  kubelet  Error: failed to start: no such program""",
    "a compiler in a subprocess": """\
torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:
SubprocException: An exception occurred in a subprocess:

Traceback (most recent call last):
  File "/x/subproc_pool.py", line 9, in do_job
> ValueError: the kernel has no grid""",
    "pip in a runtime_env": """\
ray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[9] failed with the \
following details.
Command '['pip']' returned non-zero exit status 1.
Last 50 lines of stdout:
    Collecting x
    >pip of the runtime_env> ERROR: Failed to build 'x'""",
    "nvcc, whom ninja calls": f"""{uncaught("RuntimeError: Ninja build failed. Ninja output:")}
[1/8] /usr/local/cuda/bin/nvcc -c a.cu -o a.o
FAILED: a.o
/usr/local/cuda/bin/nvcc -c a.cu -o a.o
>architecture of nvcc> nvcc fatal   : Unsupported gpu architecture 'compute_120a'
ninja: build stopped: subcommand failed.""",
    "Ascend's codes stand below a header that only states a failure": f"""\
{uncaught("RuntimeError: [Rank 0]: HCCL init failed")}
[ERROR] 2026-06-25-09:58:24 (PID:71, Device:0, RankID:0) ERR02200 DIST call hccl api failed.
> EJ0001: [PID: 71] 2026-06-25-09:58:24.1 Failed to initialize the HCCP process. Reason: b""",
    "an inner error of Ascend's is no reason": """\
[ERROR] 2026-11-02-10:00:00 (PID:9, Device:3, RankID:3) ERR02200 DIST call hccl api failed.
RuntimeError: HCCL function error: hcclCommInit, error code is 4
2026-11-02-10:00:00 (PID:9, Device:3, RankID:3) ERR02200 DIST call hccl api failed.
E39999: Inner Error!
> EJ0001: [PID: 9] Failed to initialize the HCCP process. Reason: a former job runs.""",
    "a library says why its binding for Python fails": f"""\
src/host/init/init.cu:972: > non-zero status: 7 setup heap failed
{uncaught("RuntimeError: nvshmem init failed")}""",
    "what is asked and cannot be imported, long before a server is given up": f"""\
{uncaught("> ImportError: no name X")}
{SHARDS}
{uncaught("RuntimeError: server launch failed")}""",
    "a driver that fits not its library": f"""\
>driver and library> Failed to initialize NVML: Driver/library version mismatch
{uncaught("RuntimeError: No CUDA GPUs are available")}""",
    "a server's answer in an exception": """\
Traceback (most recent call last):
  File "/x/a.py", line 3, in <module>
    g()
>W&B run deleted> wandb.errors.CommError: an error while communicating with W&B. Error: 409""",
    "a retriever ended before it was asked": f"""\
{uncaught("> RuntimeError: Error in faiss::read_index: Index type 0x7 not recognized")}
{printed_by("(W pid=3) ", uncaught(NO_RETRIEVER))}""",
    "what ends after another end": """2025-11-26 20:12:10 [ERROR] > the table is torn, giving up
Traceback (most recent call last):
  File "/x/httpx/_client.py", line 3, in aclose
    x
RuntimeError: Event loop is closed""",
    "what waits for something that has ended": """(Judge pid=7) ERROR: > the judge's table is torn
Traceback (most recent call last):
  File "/x/train.py", line 3, in <module>
    wait()
TimeoutError: Timed out after 600 s waiting for the judge""",
    "an installation that failed, in the words of what it ran": """\
  error: subprocess-exited-with-error
  × python setup.py did not run successfully.
      Traceback (most recent call last):
        File "/tmp/x/setup.py", line 19, in <module>
          import x
      > LookupError: the header is torn
      [end of output]
ERROR: Failed building wheel for x""",
    "torchrun's summary of the first failure": """train.py FAILED
  rank      : 3 (local_rank: 3)
  traceback : Traceback (most recent call last):
    File "/x/train.py", line 12, in main
      load()
  > RuntimeError: the shard is torn
""",
    "a checkpoint's errors by rank": """\
torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:[0]
Traceback (most recent call last): (RANK 0)
  File "/x/planner.py", line 4, in plan
    raise RuntimeError(x)
> RuntimeError: the plan is torn""",
    "which address does not answer: what was raised from it rarely says so": """\
Traceback (most recent call last):
  File "/x/urllib3/connection.py", line 1, in new
    x
ConnectionRefusedError: [Errno 111] Connection refused

The above exception was the direct cause of the following exception:

> urllib3.exceptions.MaxRetryError: HTTPConnectionPool(host='10.8.0.4', port=80): Max retries

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/train.py", line 9, in <module>
    main()
RuntimeError: the tool failed""",
    "an error that its process survived for long, and how the run ended": (
        "ERROR: the icon is missing\n"
        + "loading\n" * 50
        + "[rank1]: > torch.distributed.DistBackendError: the group is torn\n"
        + "srun: error: n0: task 0: Exited with exit code 1"
    ),
    "last words that another line passes on, though steps followed": f"""step 5/40 reward 0.5
{printed_by("(E pid=9, ip=10.8.0.12) ", raised(f">GPU memory> {OOM}"))}
{STEPS}
ray.exceptions.RayTaskError(EngineDeadError): ray::E.generate() (pid=9)""",
    "a time of the lines before a line of the kernel is none of its own": f"""\
2025-11-26 10:00:00 begun
2025-11-25 09:00:00,000 - a - INFO - the time of a file
[917148.149769] >Xid> NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.
{REAL}""",
    "the line below an exception that Python ignored is another program's": """\
Exception ignored in: <module 'x'>
Traceback (most recent call last):
  File "/x", line 3, in f
KeyboardInterrupt:
>SIGKILL> Killed
""",
    "the traceback of a logging error stands between hydra's title and its own": f"""\
Error executing job with overrides: ['a=b']
--- Logging error ---
{raised("ValueError: I/O operation on closed file.", "emit")}
{raised("> ValueError: 42", "main")}""",
    "how the rebuilding of an exception failed says nothing of the worker's error": f"""\
Traceback (most recent call last):
  File "/x/ray/exceptions.py", line 51, in from_ray_exception
    return pickle.loads(data)
TypeError: __init__() missing 1 required positional argument: 'msg'
{DIRECT_CAUSE}
{raised("> RuntimeError: Failed to unpickle serialized exception")}""",
    "a thread of the data loader has said why it ended before the main thread states its end": f"""\
Exception in thread Thread-5:
Traceback (most recent call last):
  File "/x/t.py", line 5, in run
    get()
>memory maps> RuntimeError: unable to mmap 2048 bytes from file <filename not specified>: \
Cannot allocate memory (12)
{printed_by("[rank4]: ", uncaught("RuntimeError: Pin memory thread exited unexpectedly"))}""",
    "what a shell says of a child's end only passes on the child's last words": """\
terminate called after throwing an instance of 'gloo::IoException'
  > what():  [/x/gloo/transport/tcp/pair.cc:724] connect [10.0.0.9]:3210: Connection refused
run.sh: line 14:  4071 Aborted                 (core dumped) python train.py""",
    "a launcher only announces what the scheduler's line says": """\
Failed to provision all possible launchable resources.
  >evicted by Kueue> Reason: Pod a-head failed: Preempted by Kueue: \
WorkloadEvictedDueToPodsReadyTimeout""",
    "a launcher warns of an eviction before its own exception without a reason": f"""\
2026-06-22 16:40:52 - WARNING - launcher - >evicted for memory> pod a-1: Failed, reason Evicted: \
The node was low on resource: memory. Threshold quantity: 100Mi, available: 61004Ki.
{REAL}""",
    "a launcher that announces a loss says less than the exception that follows from it": f"""\
2026-03-30 08:49:17,120 ERROR tune_controller.py:13 -- Trial task failed for X_1
{raised("ray.exceptions.RayTaskError(OwnerDiedError): ray::T.f() (pid=7, ip=10.0.0.2)")}
  File "/x/b.py", line 9, in get
    ray.get(ref)
>owner of an object> ray.exceptions.OwnerDiedError: Failed to retrieve object 00ff. \
To see information

2026-03-30 08:49:17,470 ERROR tune.py:11 -- Trials did not complete: [X_1]""",
    "a node that Ray lost ended a worker": f"""\
(raylet) >node lost> The node with node id: 6e71 has been marked dead because the detector has
2026-03-06 01:22:45,008 ERROR backend_executor.py:723 -- Worker 3 has failed.
{raised("ray.exceptions.RayActorError: The actor died unexpectedly before finishing")}""",
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_the_line_of_the_cause_is_found_in_longer_ends(text: str) -> None:
    """Not the one of what passes it on, or follows from it.

    The line is marked by an arrow, which has the key of its row, where there is one.
    """
    before, key, after = re.split(r">(?:(\w[\w& ]*)>)? ", text, maxsplit=1)
    found = cause(before + after)
    assert (found.key, found.line) == (key or "", after.partition("\n")[0])


# --- a signal, another try, a clean-up ------------------------------------------------------------

OTHER_STEPS = {
    "verl": "(TaskRunner pid=9) step:{} - actor/loss:0.1",
    "transformers": "{{'loss': 0.{}, 'grad_norm': 1.0}}",
    "own": "step {} loss 0.31",
    "own logger": "2026-11-28 10:00:{} trainer: iter={} loss=0.31",
}
ERRORS = {
    "ECC": raised("RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    "Xid": "kernel: NVRM: Xid (PCI:0000:3b:00): 48, An uncorrectable double bit error (DBE)",
    "memory": raised(OOM),
    "memory of an actor": printed_by("(W pid=7) ", raised(OOM)),
    "disk": raised("OSError: [Errno 28] No space left on device: '/ckpt/a'"),
}


@pytest.mark.parametrize("step", OTHER_STEPS.values(), ids=OTHER_STEPS)
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_what_a_run_survived_does_not_explain_its_end_by_a_signal(error: str, step: str) -> None:
    """It started again, and made forty steps: the GPU that failed was exchanged meanwhile."""
    steps = "\n".join(step.format(at, at) for at in range(20, 60))
    signals = (
        "Received SIGTERM, exiting",
        "Terminated",
        "E1126 20:12:10.1 2 api.py:869] failed (exitcode: -15) local_rank: 0 (pid: 7)",
        "",
    )
    for signal in signals:
        found = cause(f"starting\n{error}\nrestarting\n{steps}\n{signal}")
        assert (found.key, found.line in signal) == ("", True), signal


@pytest.mark.parametrize(
    "line",
    [
        "wandb: Network error (ConnectionError), entering retry loop.",
        "No changed files since the last save, skipping upload",
        "Cache file not found, falling back to the network",
        "Exception ignored in: <function _releaseLock at 0x7f>",
        "Exception ignored in: <function x at 0x7f>\nBrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_another_try_of_something_else_handles_no_error(line: str) -> None:
    """It says nothing of an error that it does not name, directly behind it or later."""
    for error in (uncaught(OOM), uncaught("requests.exceptions.SSLError: bad handshake")):
        expected = cause(error)
        for logs in (f"{error}\n{line}", f"{error}\nreading\n{line}\nreading", f"{line}\n{error}"):
            assert (cause(logs).key, cause(logs).line) == (expected.key, expected.line)


@pytest.mark.parametrize(
    "retry",
    ["retrying in 3 s", "attempt 2/5", "request of a page failed, retrying (fetch)"],
)
def test_another_try_handles_what_it_names(retry: str) -> None:
    """A line shortly behind an error that names nothing else is about that one."""
    error = "ConnectionError: request of a page failed"
    failed = raised(error)
    other = f"{failed}\nWARNING no libaio here\n(W pid=3) loading\n{retry}\nfetched\n{REAL}"
    assert answer(other) == DIVISION
    assert answer(f"{failed}\n{retry}\nfetched\n{REAL}") == DIVISION
    assert cause(f"{uncaught(error)}\n{retry}").line == error


def test_a_command_that_cleans_up_is_no_cause() -> None:
    """A script goes on behind a command that fails, and cleans up at its end."""
    assert cause(RSYNC).key == "rsync"
    went_on = "starting\n" * 4
    for error in (REAL, f"ValueError: {GONE}", WATCHDOG):
        for logs in (f"{error}\n{RSYNC}", f"{RSYNC}\n{went_on}{error}"):
            assert cause(logs).key != "rsync"
    missing = "/w/train.sh: line 41: gsutil: command not found"
    for error in ("ERROR [x.py:1] cannot schedule the batch", "RayTaskError(SyntaxError): x"):
        for command in (RSYNC, missing, "rm: cannot remove '/scratch/a': Permission denied"):
            assert cause(f"{error}\n{command}").line == cause(error).line
    assert cause(f"{missing}\n{RSYNC}").line == missing
    killed = "train.sh: line 12: 4711 Killed  python train.py"
    assert cause(f"ERROR [x.py:1] cannot schedule the batch\n{killed}\n{RSYNC}").line == killed


def test_why_a_line_is_the_cause_is_told() -> None:
    """Of each error of a log: the cause first, the others in their order."""
    ignored = "Exception ignored in: <_io.FileIO name='a'>\nOSError: closed"
    text = f"{RSYNC}\n{ignored}\n{uncaught('ValueError: bad row')}\nlast"
    chosen, command, quoted = weighed(Log("", "job.log", text, first_line=11))
    assert chosen == f"job.log:17: 'ValueError: bad row': {REASONS[Rung.ENDED]} (no row)"
    assert command.endswith(f": {REASONS[Rung.COMMAND]} (row 'rsync')")
    assert quoted.startswith(
        "job.log:13: 'OSError: closed': the program that printed it ignored it"
    )


def test_the_page_about_causes_has_every_reason() -> None:
    """In the order in which they count."""
    page = (Path(__file__).parents[3] / "docs" / "causes.md").read_text(encoding="utf-8")
    assert "\n".join(f"| {rung + 1} | {reason} |" for rung, reason in REASONS.items()) in page
