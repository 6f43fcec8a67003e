"""The first cause among the errors of all nodes, and what only follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.diagnosis.find_cause import Diagnosis, diagnose_logs, weighed
from agent.diagnosis.order import REASONS, Rung
from agent.diagnosis.rows import table
from agent.diagnosis.searched_log import Log

TRACE = 'Traceback (most recent call last):\n  File "/x/a.py", line 3, in f\n    g()\n'
REAL = f"{TRACE}ZeroDivisionError: division by zero"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
GONE = "NCCL error: remote process exited or there was a network error"


def cause(*texts: str) -> Diagnosis:
    """Return the diagnosis of the logs of some nodes."""
    return diagnose_logs([Log(f"n{at}", "job.log", text) for at, text in enumerate(texts)])


def with_prefix(prefix: str, text: str) -> str:
    """Return a text with a prefix before each line."""
    return "\n".join(f"{prefix}{line}" for line in text.split("\n"))


@pytest.mark.parametrize(
    "consequence",
    [
        f"[rank0]: torch.distributed.DistBackendError: {GONE}",
        "[rank0]:[E1126 10:00:00.1 P:6] [Rank 0] Watchdog caught collective operation timeout: W",
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
        found = cause(*texts)
        assert (found.line, found.key) == ("ZeroDivisionError: division by zero", ""), texts


NO_REWARDS = (
    "pod_agent_rehearsal.RewardError: http://a:5000/get_reward returned no rewards for 1 s: 500 x"
)


def test_what_a_logger_prints_beside_an_end_is_no_cause() -> None:
    """A row that explains little still explains more than a logger's unknown line."""
    frames = TRACE.replace("in f", "in <module>")
    logged = "2026-11-27 17:54:08,137 - launcher - ERROR - cannot copy the report of the child"
    assert cause(f"{frames}{NO_REWARDS}\n{logged}").key == "reward server"
    assert cause(f"{logged}\nstarting\n{frames}{NO_REWARDS}").key == "reward server"


ELASTIC = "torch/distributed/elastic"
NO_FILE = "no error file defined for parent, to copy child error file (/tmp/torchelastic_u/a.json)"


@pytest.mark.parametrize(
    "logged",
    [
        f"E1127 17:54:08.1 7 {ELASTIC}/multiprocessing/errors/error_handler.py:145] {NO_FILE}",
        "ERROR:torch.distributed.elastic.agent.server.api:Error waiting on exit barrier. After 9",
    ],
)
def test_what_torchrun_logs_of_its_ranks_is_no_cause(logged: str) -> None:
    """It starts and ends them: what it logs of that is its own echo of their ends."""
    assert cause(f"{TRACE}{NO_REWARDS}\n{logged}").key == "reward server"
    assert cause(f"{logged}\nstarting\n{TRACE}{NO_REWARDS}").key == "reward server"


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


def test_an_error_that_ended_a_process_counts_before_one_that_did_not() -> None:
    """What an actor printed and went on from is earlier, and no cause."""
    survived = with_prefix("(RewardManager pid=3) ", f"{TRACE}ValueError: cannot parse the answer")
    goes_on = "\n".join(f"(RewardManager pid=3) scored batch {at}" for at in range(20))
    ended = with_prefix("(W pid=9, ip=10.0.0.9) ", REAL)
    driver = (
        f"{TRACE}ray.exceptions.RayTaskError(ZeroDivisionError): ray::W.f() (pid=9, ip=10.0.0.9)\n"
        '  File "/x/w.py", line 4, in f\nZeroDivisionError: division by zero'
    )
    found = cause(f"{survived}\n{goes_on}\n{ended}\n{driver}")
    assert (found.line, found.ip) == ("ZeroDivisionError: division by zero", "10.0.0.9")


def test_last_words_that_another_line_passes_on_are_the_cause_though_steps_followed() -> None:
    """An engine ended; the trainer made a step before it asked the engine again."""
    passed_on = "ray.exceptions.RayTaskError(EngineDeadError): ray::E.generate() (pid=9)"
    engine = with_prefix("(E pid=9, ip=10.8.0.12) ", f"{TRACE}{OOM}")
    steps = "\n".join(f"step {number}/40 reward 0.5" for number in range(7, 20))
    assert cause(f"step 5/40 reward 0.5\n{engine}\n{steps}\n{passed_on}").line == OOM


def test_a_count_of_no_failures_is_no_error() -> None:
    """What a tool or a test prints; with any it may be one."""
    assert cause(f"Tests Failed: 0\n[Trainer-0/1] {OOM}").line == OOM
    assert cause("Tests Failed: 3").line == "Tests Failed: 3"


LINES_AFTER = "\n".join(f"loaded shard {n} of 200" for n in range(150))


def test_what_a_process_survived_for_long_is_no_cause_if_its_row_explains_little() -> None:
    """A tool's answer that was no JSON is not why a collective timed out."""
    tool = f"{TRACE}json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    watchdog = (
        "[rank0]:[E1126 10:00:00.1 P:6] [Rank 0] Watchdog caught collective operation timeout: W"
    )
    assert cause(f"{tool}\n{LINES_AFTER}\n{watchdog}").row is None
    assert cause(f"{tool}\n{watchdog}").key == "not JSON"


def test_what_a_process_survived_for_long_is_not_the_cause_of_an_end_without_a_word() -> None:
    """A killed job says nothing: the line is only quoted; what passes an end on makes it one."""
    killed = cause(f"{TRACE}{OOM}\n{LINES_AFTER}")
    assert (killed.row, killed.line) == (None, OOM)
    ended = cause(
        f"{TRACE}{OOM}\n{LINES_AFTER}\nE1126 20:12:10.1 2 api.py:869] failed (exitcode: 1)"
    )
    assert ended.key == "GPU memory"
    assert cause(f"{TRACE}{OOM}\nloaded shard 1 of 2").key == "GPU memory"


@pytest.mark.parametrize(
    "trap",
    [
        f"(T pid=1) [response] I ran it:\n{with_prefix('(T pid=1) ', OOM)}\n(T pid=1) [score] 0.0",
        f"<tool_response>\n{TRACE}{OOM}\n</tool_response>",
        f"If you see `{OOM}`, lower the batch size.",
        f"{OOM}, retrying with half of the batch",
        f"{TRACE}{OOM}\nstep 4/40 mean reward 0.61\nstep 5/40 mean reward 0.61",
        f"WARNING: {OOM}",
        f"[rank0]:[W1126 10:00:00.1 P.cpp:6] {OOM}",
        f"Namespace(hint='{OOM}')",
        f'{{"prompt": "why?", "response": "{OOM}"}}',
        f"│ prompt │ {OOM} │",
        f"Exception ignored in: <function f>\n{TRACE}{OOM}\n",
        "[Sun Nov 23 09:00:00 2025] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
    ],
)
def test_scary_lines_are_no_cause(trap: str) -> None:
    """Texts, warnings, what was overcome, and what the kernel printed days before the run."""
    began = "2025-11-26 10:00:01,000 - a - INFO - begun"
    goes_on = "\n".join(f"loading {at}" for at in range(9))
    found = cause(f"{trap}\n{began}\n{goes_on}\n{REAL}")
    assert (found.line, found.key) == ("ZeroDivisionError: division by zero", "")
    found = cause(f"{trap}\n{began}\n{goes_on}", f"{began}\n{REAL}")
    assert (found.line, found.key) == ("ZeroDivisionError: division by zero", "")
    assert cause(f"{began}\n{trap}\n{goes_on}").key in {"", "Xid"}


def test_a_line_of_the_kernel_is_as_old_as_it_says_itself() -> None:
    """A time of the lines before it is none of its own."""
    fault = "[917148.149769] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."
    earlier = "2025-11-25 09:00:00,000 - a - INFO - the time of a file"
    assert cause(f"2025-11-26 10:00:00 begun\n{earlier}\n{fault}\n{REAL}").key == "Xid"


def test_a_warning_above_a_traceback_that_nobody_caught_is_not_its_own() -> None:
    """Also where Python itself begins the program."""
    begun = FRAME.replace("/x/a.py", "<frozen runpy>").format("_run_module_as_main")
    warned = "2026-08-12 11:36:28,039\tWARNING utils.py:1515 -- Unable to connect to GCS"
    assert (
        cause(f"{warned}\n{begun}ModuleNotFoundError: No module named 'x'").key == "missing module"
    )


def test_frames_before_a_bare_exception_show_who_asked() -> None:
    """Also where other lines stand between them and it."""
    asked = TRACE.replace("in f", "in oracle_reward") + "tenacity.RetryError: RetryError[x]"
    refused = "httpx.ConnectError: [Errno 111] Connection refused"
    others = "\n".join(f"loaded shard {number}" for number in range(8))
    assert cause(f"{asked}\n{others}\n{refused}").key == "reward server"
    assert cause(f"{others}\n{refused}").key == ""


def test_a_warning_of_another_process_ends_no_traceback() -> None:
    """One that was raised stands below a frame that warns."""
    trace = TRACE.removesuffix("\n")
    assert cause(f"{trace}\nFutureWarning: Tip: in future versions").line == ""
    raised = trace.replace("g()", 'warnings.warn("x", FutureWarning)')
    assert cause(f"{raised}\nFutureWarning: x\n{REAL}").line.startswith("ZeroDivisionError")


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
    text = "\n".join([*before, f"{TRACE}ValueError: short"])
    shown = cause(text).page().split("\n")
    assert shown[-6:] == [*(f"    line {at}" for at in range(2, 6)), "    ValueError: short", ""]


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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            (
                "slurmstepd: error: pyxis: container start failed with error code: 1\n"
                "slurmstepd: error: pyxis: printing enroot log file:\n"
                "slurmstepd: error: pyxis:     [ERROR] Failed to import the image: bad header\n"
                "slurmstepd: error: pyxis: couldn't start container\n"
                "slurmstepd: error: Failed to invoke spank plugin stack\n"
                "srun: error: node-2: task 0: Exited with exit code 1"
            ),
            "pyxis:     [ERROR] Failed to import the image: bad header",
        ),
        (
            (
                "slurmstepd: error: couldn't chdir to `/home/run': No such file or directory: "
                "going to /tmp instead\nslurmstepd: error: execve(): train: Exec format error"
            ),
            "execve(): train: Exec format error",
        ),
        (
            (
                "docker: Error response from daemon: failed task: OCI runtime create failed: "
                "error during container init: error running prestart hook #0: exit status 1\n"
                "nvidia-container-cli: mount error: open failed: /proc/driver"
            ),
            "nvidia-container-cli: mount error: open failed: /proc/driver",
        ),
        (
            (
                "  Warning  BackOff  1m  kubelet  Back-off restarting failed container\n"
                "  Warning  Failed   5m  kubelet  Error: failed to start: no such program"
            ),
            "failed to start: no such program",
        ),
        (
            "Nov 26 10:00:00 node-1 kubelet[123]: E1126 10:00:00.1     123 pods.go:4] out of pods",
            "out of pods",
        ),
        (
            '{"log":"ValueError: bad magic number in shard 3\\n","stream":"stderr","time":"x"}',
            "ValueError: bad magic number in shard 3",
        ),
        (
            '{"level":50,"time":17,"msg":"The sandbox refused the code: 3 workers left"}',
            "The sandbox refused the code: 3 workers left",
        ),
        (
            (
                '{"levelname": "ERROR", "message": "Traceback (most recent call last):\\n  File '
                '\\"/app/a.py\\", line 3, in f\\n    f()\\nValueError: 3 scores for 4 prompts"}'
            ),
            "ValueError: 3 scores for 4 prompts",
        ),
        (
            (
                "[rank=0] Traceback (most recent call last):\n[rank=1] Traceback (most recent "
                'call last):\n[rank=0]   File "/app/a.py", line 3, in f\n[rank=1]   File "/a.py", '
                "line 3, in f\n[rank=0] ValueError: 7 is odd\n[rank=1] ValueError: 7 is odd"
            ),
            "ValueError: 7 is odd",
        ),
        (
            (
                "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
                "SubprocException: An exception occurred in a subprocess:\n\n"
                "Traceback (most recent call last):\n"
                '  File "/x/subproc_pool.py", line 9, in do_job\nValueError: the kernel has no grid'
            ),
            "ValueError: the kernel has no grid",
        ),
        (
            (
                "ray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[9] failed "
                "with the following details.\nCommand '['pip']' returned non-zero exit status 1.\n"
                "Last 50 lines of stdout:\n    Collecting x\n    ERROR: Failed to build 'x'"
            ),
            "ERROR: Failed to build 'x'",
        ),
    ],
)
def test_the_line_that_says_why_is_quoted(text: str, line: str) -> None:
    """Not the first one of a program, which only says that something failed."""
    assert diagnose_logs([Log("", "job.log", text)]).line.endswith(line)


SEVERAL_ENDS = [
    # what ends after another end
    """2025-11-26 20:12:10 [ERROR] > the table is torn, giving up
Traceback (most recent call last):
  File "/x/httpx/_client.py", line 3, in aclose
    x
RuntimeError: Event loop is closed""",
    # what waits for something that has ended
    """(Judge pid=7) ERROR: > the judge's table is torn
Traceback (most recent call last):
  File "/x/train.py", line 3, in <module>
    wait()
TimeoutError: Timed out after 600 s waiting for the judge""",
    # an installation that failed, in the words of what it ran
    """  error: subprocess-exited-with-error
  × python setup.py did not run successfully.
      Traceback (most recent call last):
        File "/tmp/x/setup.py", line 19, in <module>
          import x
      > LookupError: the header is torn
      [end of output]
ERROR: Failed building wheel for x""",
    # torchrun's summary of the first failure
    """train.py FAILED
  rank      : 3 (local_rank: 3)
  traceback : Traceback (most recent call last):
    File "/x/train.py", line 12, in main
      load()
  > RuntimeError: the shard is torn
""",
    # a checkpoint's errors by rank
    """torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:[0]
Traceback (most recent call last): (RANK 0)
  File "/x/planner.py", line 4, in plan
    raise RuntimeError(x)
> RuntimeError: the plan is torn""",
    # which address does not answer: what was raised from it rarely says so
    """Traceback (most recent call last):
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
    # an error that its process survived for long, and how the run ended
    "ERROR: the icon is missing\n"
    + "loading\n" * 50
    + "[rank1]: > torch.distributed.DistBackendError: the group is torn\n"
    + "srun: error: n0: task 0: Exited with exit code 1",
]


@pytest.mark.parametrize("text", SEVERAL_ENDS)
def test_the_line_of_the_cause_is_found_in_longer_ends(text: str) -> None:
    """Not the one of what passes it on, or follows from it; the line is marked by an arrow."""
    answer = diagnose_logs([Log("", "job.log", text.replace("> ", "", 1))])
    assert answer.row is None
    assert answer.line == text.partition("> ")[2].partition("\n")[0]


SLURM_ENDS = (
    "slurmstepd: error: *** STEP 12.0 ON n0 CANCELLED AT 2025-11-26T14:00:00 DUE TO TIME LIMIT ***"
)
ENDED = """Traceback (most recent call last):
  File "/x/a.py", line 3, in <module>
    g()
ZeroDivisionError: division by zero"""


def test_what_had_failed_before_the_scheduler_ended_the_job_counts() -> None:
    """The other ranks waited for a failed one until the time was up."""
    assert cause(f"{ENDED}\n{SLURM_ENDS}").line == "ZeroDivisionError: division by zero"
    assert cause(f"step:1 - loss:0.1\n{SLURM_ENDS}\n{ENDED}").key == "time limit"


def test_what_the_job_went_on_from_before_its_time_was_up_does_not_count() -> None:
    """Steps followed it."""
    went_on = f"{ENDED}\nstep:1 - loss:0.1\nstep:2 - loss:0.1\n{SLURM_ENDS}"
    assert cause(went_on).key == "time limit"


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


def test_an_empty_queue_shows_less_than_what_was_raised_for_it() -> None:
    """An exception without a message is a wait that ended; the next one says for what."""
    text = (
        f"{TRACE}_queue.Empty\n\nThe above exception was the direct cause of the following "
        f"exception:\n\n{TRACE}RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"
    )
    assert cause(text).line == "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"


def test_an_exception_that_could_not_be_rebuilt_is_not_its_cause() -> None:
    """How the rebuilding failed says nothing of the worker's error."""
    text = (
        'Traceback (most recent call last):\n  File "/x/ray/exceptions.py", line 51, in '
        "from_ray_exception\n    return pickle.loads(data)\nTypeError: __init__() missing 1 "
        "required positional argument: 'msg'\n\nThe above exception was the direct cause of the "
        f"following exception:\n\n{TRACE}RuntimeError: Failed to unpickle serialized exception"
    )
    assert cause(text).line == "RuntimeError: Failed to unpickle serialized exception"
    assert cause(text).key == ""


def test_what_led_to_a_cause_is_named_also_where_steps_followed() -> None:
    """Ray spills on after a full disk, until its object store is full."""
    full = "OSError: [Errno 28] No space left on device"
    store = "ray.exceptions.ObjectStoreFullError: Failed to put object ff in object store"
    text = f"(raylet) {full}\nstep:3 - loss:0.1\n{store} because it is full."
    answer = diagnose_logs([Log("", "job.log", text)])
    assert (answer.key, answer.line) == ("disk full", full)
    alone = diagnose_logs([Log("", "job.log", f"step:3 - loss:0.1\n{store} because it is full.")])
    assert alone.key == "object store"


def test_the_error_of_a_server_counts_before_its_clients() -> None:
    """A client only states that a server did not answer, or answered with an error."""
    begin = 'Traceback (most recent call last):\n  File "/w/x.py", line 1, in <module>\n    x\n'
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.06 GiB."
    went_on = "reading\n" * 4
    assert cause(f"{oom}\n{went_on}{begin}RuntimeError: the judge answered 500").line == oom
    limit = "    0: request error: (429 Too Many Requests) for url (https://huggingface.co/lab/m)"
    late = "TimeoutError: http://10.8.0.11:8085/health does not answer after 180 s"
    assert cause(f"{limit}\n{went_on}{begin}{late}").key == "rate limit"


def test_what_a_server_answers_is_rarely_the_first_cause() -> None:
    """Another exception of the same process counts before it."""
    answer = f"{TRACE}urllib.error.HTTPError: HTTP Error 500: Internal Server Error"
    assert cause(f"{answer}\n{REAL}").line == "ZeroDivisionError: division by zero"


def test_a_device_that_cannot_be_opened_led_to_a_network_that_is_not_found() -> None:
    """NCCL prints the device first, and then that its network is not there."""
    network = "node-1:9:9 [0] init.cc:100 NCCL WARN Error: network IB not found."
    device = "node-1:9:9 [0] NCCL WARN NET/IB : Unable to open device mlx5_0"
    assert cause(network).key == "NCCL_NET"
    assert cause(f"{device}\n{network}").key == "RDMA device"


def test_an_exception_just_before_a_crash_of_its_process_came_first() -> None:
    """With more ordinary lines between, or in another process, the crash is quoted."""
    crash = "terminate called after throwing an instance of 'c10::Error'\n"
    crash += "  what():  owning_ptr == NullType::singleton() INTERNAL ASSERT FAILED at x.h:348"
    first = f"{TRACE}ValueError: bad row"
    assert cause(f"{first}\n{crash}").line == "ValueError: bad row"
    went_on = "reading\n" * 4
    for other in (f"{first}\n{went_on}{crash}", f"{with_prefix('[rank1]: ', first)}\n{crash}"):
        assert cause(other).line.startswith("what():")


def test_what_a_shell_says_of_a_childs_end_only_passes_it_on() -> None:
    """The child's own last words say why."""
    words = (
        "what():  [/x/gloo/transport/tcp/pair.cc:724] connect [10.0.0.9]:3210: Connection refused"
    )
    ended = "run.sh: line 14:  4071 Aborted                 (core dumped) python train.py"
    thrown = "terminate called after throwing an instance of 'gloo::IoException'"
    assert cause(f"{thrown}\n  {words}\n{ended}").line == words


def test_a_line_that_only_announces_a_reason_is_not_quoted() -> None:
    """A program prints the text of an exception below its own words about it."""
    reason = "[Errno 71] Protocol error: '/ckpt/a'"
    assert cause(f"could not load the checkpoint\n{reason}").line == reason
    other = f"could not load the checkpoint\nreading on\n{reason}"
    assert cause(other).line == "could not load the checkpoint"


def test_a_warning_of_native_code_announces_no_traceback() -> None:
    """C++ prints none of Python's; a logger of Python does."""
    native = "[rank0]:[W215 03:22:50.1 socket.cpp:200] [c10d] The socket cannot be initialized"
    found = cause(f"{native}\n{with_prefix('[rank0]: ', REAL)}")
    assert (found.line, found.is_marked) == ("ZeroDivisionError: division by zero", True)
    logger = "WARNING 11-26 10:00:00 [a.py:3] could not load the plugin"
    after = f"{logger}\n{REAL}\nloaded\n{TRACE}ValueError: real"
    assert cause(after).line == "ValueError: real"


def test_a_warning_that_states_another_exception_announces_no_traceback() -> None:
    """It is whole by itself, whatever stands below it."""
    failed = "WARNING 11-26 10:00:00 [a.py:3] Failed to import x: ModuleNotFoundError('x')"
    assert cause(f"{failed}\n{REAL}").is_marked
    after = f"{failed}\n{REAL}\nloaded\n{TRACE}ValueError: real"
    assert cause(after).line == "ZeroDivisionError: division by zero"
    same = failed.replace("ModuleNotFound", "ZeroDivision")
    assert cause(f"{same}\n{REAL}\nloaded\n{TRACE}ValueError: real").line == "ValueError: real"


@pytest.mark.parametrize(
    "header", ["<function Tracker.__del__ at 0x7>", "<generator object h at 0x7>"]
)
def test_python_ignores_an_exception_in_the_function_that_it_names(header: str) -> None:
    """A traceback that begins elsewhere was printed behind the message by chance."""
    above = f"Exception ignored in: {header}"
    assert cause(f"{above}\n{REAL}\nlast").line == "ZeroDivisionError: division by zero"
    function = "__del__" if "__del__" in header else "h"
    ignored = REAL.replace("in f", f"in {function}")
    assert cause(f"{above}\n{ignored}\n{TRACE}ValueError: real").line == "ValueError: real"


def test_a_line_below_an_ignored_exception_is_not_its_message() -> None:
    """Python prints the whole message before, so that the next line is another program's."""
    ignored = (
        "Exception ignored in: <module 'x'>\nTraceback (most recent call last):\n  File \"/x\""
    )
    text = f"{ignored}, line 3, in f\nKeyboardInterrupt:\nKilled\n"
    assert cause(text).line == "Killed"


def test_what_a_logger_prints_behind_a_consequence_did_not_lead_to_it() -> None:
    """It may be of a clean-up, or of another program."""
    died = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    error = "ERROR: the versions of two packages differ"
    assert cause(f"{died}\n{error}").line == died
    assert cause(f"{error}\n{died}").line == error.removeprefix("ERROR: ")


@pytest.mark.parametrize("message", ["engine init failed", "register failed, ret_value: -1"])
def test_native_code_says_why_an_exception_only_states_a_failure(message: str) -> None:
    """Libraries in C++ log the reason, and their bindings for Python only raise that it failed."""
    native = "E0605 10:48:27.885119 10136 transport.cpp:203] device mlx5_9 has no active port"
    line = "device mlx5_9 has no active port"
    assert cause(f"{native}\n{TRACE}RuntimeError: {message}").line == line
    reason = "RuntimeError: the model has no head"
    assert cause(f"{native}\n{TRACE}{reason}").line == reason
    survived = "\n".join(f"loaded part {part}" for part in range(20))
    later = f"{native}\n{survived}\n{TRACE}RuntimeError: {message}"
    assert cause(later).line == f"RuntimeError: {message}"


def test_a_kill_that_the_job_went_on_from_is_not_the_cause_of_a_later_error() -> None:
    """Slurm states a kill of one step or process: what fails at once fails by it."""
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=83.0."
    went_on = "\n".join(f"scored {part} prompts" for part in range(30))
    assert cause(f"{killed}\n{went_on}\n{TRACE}ValueError: real").line == "ValueError: real"
    assert cause(f"{killed}\n{TRACE}ValueError: real").key == "memory of the Slurm step"
    assert cause(f"{killed}\n{went_on}").key == "memory of the Slurm step"


def test_an_assertion_without_a_message_is_quoted_with_its_code() -> None:
    """Its line of code is all that says what did not hold."""
    text = (
        'Traceback (most recent call last):\n  File "/x/a.py", line 3, in f\n'
        "    assert len(rows) == groups\nAssertionError"
    )
    found = cause(text)
    assert (found.key, found.line) == ("", "AssertionError")
    assert "`assert len(rows) == groups`, in /x/a.py:3" in found.remedy()


def test_the_errors_of_a_command_are_no_crash() -> None:
    """The AWS CLI prints `fatal error:`, as Go's runtime does; a job may go on from the first."""
    went_on = "\n".join(f"loaded part {part}" for part in range(30))
    text = f"fatal error: Unable to locate credentials\n{went_on}\n{TRACE}ValueError: real"
    assert cause(text).line == "ValueError: real"
    assert cause(text.partition("\n")[0]).key == "cloud credentials"


def test_ray_states_which_node_ran_out_of_memory() -> None:
    """The line below its error names the node, which is not the one that prints it."""
    text = (
        f"{TRACE}ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on "
        "memory.\nMemory on the node (IP: 10.0.0.9, ID: ab) where the task was running was 9GB"
    )
    found = cause(text)
    assert (found.key, found.ip) == ("memory", "10.0.0.9")


def test_a_loggers_line_that_a_process_survived_for_long_is_no_cause() -> None:
    """It tells of much that is handled, also where something else ends later."""
    said = "[rank3]:[E1126 10:00:00.1 a.cpp:6] OSError: [Errno 28] No space left on device"
    logged = f"ERROR 11-26 10:00:00 [a.py:3] {OOM.partition(': ')[2]}"
    end = "E1126 20:12:10.1 2 api.py:869] failed (exitcode: 1)"
    assert cause(f"{logged}\n{LINES_AFTER}\n{end}").row is None
    assert cause(f"{logged}\n{end}").key == "GPU memory"
    assert cause(said).key == "disk full"


def test_what_is_said_in_passing_is_no_cause_in_a_jobs_log() -> None:
    """Jobs that go on print it too; a Ray that did not start says so why."""
    said = "[W socket.cpp:697] Unable to resolve hostname. Using the loopback address as fallback."
    end = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED"
    assert cause(f"{said}\n{end}").row is None
    of_ray = diagnose_logs([Log("", "raylet.out", f"{said}\n{end}", of_ray=True)])
    assert of_ray.key == "Gloo"


def test_a_launchers_own_words_ended_no_process_before_a_scheduler_did() -> None:
    """They only announce what the scheduler's line says."""
    reason = "  Reason: Pod a-head failed: Preempted by Kueue: WorkloadEvictedDueToPodsReadyTimeout"
    found = cause(f"Failed to provision all possible launchable resources.\n{reason}")
    assert (found.key, found.line) == ("evicted by Kueue", reason.strip())


def test_a_rank_in_the_name_of_an_actor_is_read() -> None:
    """As NeMo-RL names its workers."""
    found = cause(with_prefix("(MegatronPolicyWorker[rank=5] pid=17, ip=10.0.0.9) ", REAL))
    assert (found.line, found.rank, found.ip) == (
        "ZeroDivisionError: division by zero",
        5,
        "10.0.0.9",
    )


def test_a_program_that_a_model_wrote_is_no_cause() -> None:
    """Sandboxes run it from a folder of Python's tempfile, and print how it ended."""
    program = (
        'Traceback (most recent call last):\n  File "/tmp/tmpz0c5t9ra/tmpm31v7y_k.py", line 2, in '
        "<module>\n    import sympyy\nModuleNotFoundError: No module named 'sympyy'"
    )
    steps = "\n".join(f"step:{at} - loss:0.3" for at in range(30))
    interrupt = f"{TRACE}KeyboardInterrupt"
    assert cause(f"{program}\n{steps}\n{interrupt}").key == ""
    assert cause(f"{program}\n{REAL}").line == "ZeroDivisionError: division by zero"
    own = program.replace("/tmp/tmpz0c5t9ra/tmpm31v7y_k.py", "/tmp/train.py")
    assert cause(own).key == "missing module"


def test_a_line_of_a_launcher_that_announces_a_loss_is_not_quoted() -> None:
    """Though the exception below it only follows from the loss, it says more."""
    wrapped = (
        f"{TRACE}ray.exceptions.RayTaskError(OwnerDiedError): ray::T.f() (pid=7, ip=10.0.0.2)\n"
        '  File "/x/b.py", line 9, in get\n    ray.get(ref)\n'
        "ray.exceptions.OwnerDiedError: Failed to retrieve object 00ff. To see information"
    )
    announced = "2026-03-30 08:49:17,120 ERROR tune_controller.py:13 -- Trial task failed for X_1"
    ended = "2026-03-30 08:49:17,470 ERROR tune.py:11 -- Trials did not complete: [X_1]"
    found = cause(f"{announced}\n{wrapped}\n\n{ended}")
    assert found.key == "owner of an object"

    dead = "(raylet) The node with node id: 6e71 has been marked dead because the detector has"
    failed = "2026-03-06 01:22:45,008 ERROR backend_executor.py:723 -- Worker 3 has failed."
    lost = f"{TRACE}ray.exceptions.RayActorError: The actor died unexpectedly before finishing"
    assert cause(f"{dead}\n{failed}\n{lost}").key == "node lost"


def test_a_thread_that_ended_only_passes_its_exception_on() -> None:
    """The data loader's main thread states that its thread ended; the thread has said why."""
    inner = (
        'Exception in thread Thread-5:\nTraceback (most recent call last):\n  File "/x/t.py", '
        "line 5, in run\n    get()\nRuntimeError: unable to mmap 2048 bytes from file "
        "<filename not specified>: Cannot allocate memory (12)\n"
    )
    outer = with_prefix(
        "[rank4]: ",
        'Traceback (most recent call last):\n  File "/x/m.py", line 1, in <module>\n    main()\n'
        "RuntimeError: Pin memory thread exited unexpectedly",
    )
    assert cause(inner + outer).key == "memory maps"


def test_a_crash_of_another_process_counts_before_an_unknown_error() -> None:
    """Not a crash of the same process, which may end so behind its exception; nor a late one."""
    crash = "(Worker_TP1 pid=452) !!!!!!! Segfault encountered !!!!!!!"
    asking = with_prefix("(EngineCore pid=388) ", f"{TRACE}RuntimeError: cancelled")
    found = cause(f"{crash}\n{asking}")
    assert (found.key, found.cause) == ("crash", "a process crashed in compiled code (Segfault)")
    assert cause(f"{asking}\n{crash}").line == "RuntimeError: cancelled"
    known = with_prefix("(EngineCore pid=388) ", f"{TRACE}{OOM}")
    assert cause(f"{crash}\n{known}").line == OOM


def test_what_a_progress_bar_moved_on_from_is_no_cause() -> None:
    """A bar that is printed once more behind an exception shows no further step."""
    library = (
        "Could not load library libnvrtc.so.11.2. Error: libnvrtc.so.11.2: cannot open shared "
        "object file: No such file or directory"
    )
    bars = [
        f"Epoch 0:   1%|1   | {at}/2500 [00:04<1:36:38,  2.0s/it, loss=1.5]" for at in (7, 8, 9)
    ]
    found = cause("\n".join((library, *bars, REAL)))
    assert found.line == "ZeroDivisionError: division by zero"
    again = f"{bars[0]}\n{bars[1]}\n{library}\n{bars[1]}\n{bars[2]}\n"
    assert cause(again).key == "CUDA library"


def test_an_eviction_that_a_launcher_reports_is_the_cause() -> None:
    """As a warning, before the launcher's own exception without a reason."""
    evicted = (
        "2026-06-22 16:40:52 - WARNING - launcher - pod a-1: Failed, reason Evicted: The node was "
        "low on resource: memory. Threshold quantity: 100Mi, available: 61004Ki."
    )
    assert cause(f"{evicted}\n{REAL}").key == "evicted for memory"


OTHER_STEPS = {
    "verl": "(TaskRunner pid=9) step:{} - actor/loss:0.1",
    "transformers": "{{'loss': 0.{}, 'grad_norm': 1.0}}",
    "own": "step {} loss 0.31",
    "own logger": "2026-11-28 10:00:{} trainer: iter={} loss=0.31",
}
SURVIVED = {
    "ECC": f"{TRACE}RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "Xid": "kernel: NVRM: Xid (PCI:0000:3b:00): 48, An uncorrectable double bit error (DBE)",
    "memory": f"{TRACE}{OOM}",
    "memory of an actor": with_prefix("(W pid=7) ", f"{TRACE}{OOM}"),
    "disk": f"{TRACE}OSError: [Errno 28] No space left on device: '/ckpt/a'",
}


@pytest.mark.parametrize("step", OTHER_STEPS.values(), ids=OTHER_STEPS)
@pytest.mark.parametrize("error", SURVIVED.values(), ids=SURVIVED)
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
    begin = TRACE.replace("in f", "in <module>")
    for error in (f"{begin}{OOM}", f"{begin}requests.exceptions.SSLError: bad handshake"):
        expected = cause(error)
        for logs in (f"{error}\n{line}", f"{error}\nreading\n{line}\nreading", f"{line}\n{error}"):
            assert (cause(logs).key, cause(logs).line) == (expected.key, expected.line)


@pytest.mark.parametrize(
    "retry",
    ["retrying in 3 s", "attempt 2/5", "request of a page failed, retrying (fetch)"],
)
def test_another_try_handles_what_it_names(retry: str) -> None:
    """A line shortly behind an error that names nothing else is about that one."""
    failed = f"{TRACE}ConnectionError: request of a page failed"
    other = f"{failed}\nWARNING no libaio here\n(W pid=3) loading\n{retry}\nfetched\n{REAL}"
    assert cause(other).line.startswith("ZeroDivisionError")
    assert cause(f"{failed}\n{retry}\nfetched\n{REAL}").line.startswith("ZeroDivisionError")
    begun = failed.replace("in f", "in <module>")  # nobody caught it
    assert cause(f"{begun}\n{retry}").line == "ConnectionError: request of a page failed"


def test_a_command_that_cleans_up_is_no_cause() -> None:
    """A script goes on behind a command that fails, and cleans up at its end."""
    rsync = 'rsync: [sender] link_stat "/data/a" failed: No such file or directory (2)'
    assert cause(rsync).key == "rsync"
    watchdog = (
        "[rank0]:[E1126 10:00:00.1 P:6] [Rank 0] Watchdog caught collective operation timeout: W"
    )
    went_on = "starting\n" * 4
    for error in (REAL, f"ValueError: {GONE}", watchdog):
        for logs in (f"{error}\n{rsync}", f"{rsync}\n{went_on}{error}"):
            assert cause(logs).key != "rsync"
    missing = "/w/train.sh: line 41: gsutil: command not found"
    for error in ("ERROR [x.py:1] cannot schedule the batch", "RayTaskError(SyntaxError): x"):
        for command in (rsync, missing, "rm: cannot remove '/scratch/a': Permission denied"):
            assert cause(f"{error}\n{command}").line == cause(error).line
    assert cause(f"{missing}\n{rsync}").line == missing
    killed = "train.sh: line 12: 4711 Killed  python train.py"
    assert cause(f"ERROR [x.py:1] cannot schedule the batch\n{killed}\n{rsync}").line == killed


BEGIN = TRACE.replace("in f", "in <module>")
NINJA = """RuntimeError: Ninja build failed. Ninja output:
[1/8] /usr/local/cuda/bin/nvcc -c a.cu -o a.o
FAILED: a.o
/usr/local/cuda/bin/nvcc -c a.cu -o a.o
nvcc fatal   : Unsupported gpu architecture 'compute_120a'
ninja: build stopped: subcommand failed."""
ASCEND = """RuntimeError: [Rank 0]: HCCL init failed
[ERROR] 2026-06-25-09:58:24 (PID:71, Device:0, RankID:0) ERR02200 DIST call hccl api failed.
EJ0001: [PID: 71] 2026-06-25-09:58:24.1 Failed to initialize the HCCP process. Reason: b"""
NO_RETRIEVER = (
    "requests.exceptions.ConnectionError: HTTPConnectionPool(host='127.0.0.1', port=8000): Max "
    "retries exceeded with url: /retrieve (Caused by NewConnectionError('[Errno 111] refused'))"
)


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        (f"{BEGIN}{NINJA}", "architecture of nvcc", "nvcc fatal"),
        (f"{BEGIN}{ASCEND}", "", "EJ0001: [PID: 71]"),
        (
            (
                "src/host/init/init.cu:972: non-zero status: 7 setup heap failed\n"
                f"{BEGIN}RuntimeError: nvshmem init failed"
            ),
            "",
            "non-zero status: 7",
        ),
        (
            (
                f"{BEGIN}ImportError: no name X\n{LINES_AFTER}\n"
                f"{BEGIN}RuntimeError: server launch failed"
            ),
            "",
            "ImportError",
        ),
        (
            (
                "Failed to initialize NVML: Driver/library version mismatch\n"
                f"{BEGIN}RuntimeError: No CUDA GPUs are available"
            ),
            "driver and library",
            "Failed to initialize NVML",
        ),
        (
            f"{BEGIN}wandb.errors.CommError: an error while communicating with W&B. Error: 409",
            "W&B run deleted",
            "wandb.errors",
        ),
        (
            f"{BEGIN}RuntimeError: Error in faiss::read_index: Index type 0x7 not recognized\n"
            + with_prefix("(W pid=3) ", f"{BEGIN}{NO_RETRIEVER}"),
            "",
            "RuntimeError: Error in faiss",
        ),
    ],
    ids=["nvcc", "ascend", "nvshmem", "import", "nvml", "409", "index"],
)
def test_why_something_failed_counts_before_that_it_failed(text: str, key: str, line: str) -> None:
    """What a compiler, a runtime or a server says, before who started or asked it."""
    found = cause(text)
    assert found.key == key
    assert found.line.startswith(line)


def test_why_a_line_is_the_cause_is_told() -> None:
    """Of each error of a log: the cause first, the others in their order."""
    rsync = 'rsync: [sender] link_stat "/data/a" failed: No such file or directory (2)'
    ignored = "Exception ignored in: <_io.FileIO name='a'>\nOSError: closed"
    text = f"{rsync}\n{ignored}\n{BEGIN}ValueError: bad row\nlast"
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


FRAME = 'Traceback (most recent call last):\n  File "/x/a.py", line 3, in {}\n    g()\n'


def test_what_python_ignored_is_no_answer_behind_a_title_of_hydra() -> None:
    """Its traceback stands in between; hydra's own follows."""
    text = (
        "Error executing job with overrides: ['a=b']\n--- Logging error ---\n"
        f"{FRAME.format('emit')}ValueError: I/O operation on closed file.\n"
        f"{FRAME.format('main')}ValueError: 42"
    )
    assert cause(text).line == "ValueError: 42"


def test_a_traceback_that_was_cut_off_yields_to_the_next_one() -> None:
    """Its frames are none of the next one's."""
    cut = FRAME.format("<module>")
    text = f"{cut}Exception ignored in: <function f at 0x7f>\n{FRAME.format('f')}OSError: x"
    assert cause(text).line == ""


def test_a_line_that_informs_announces_no_traceback() -> None:
    """Nor does a warning announce one that nobody caught, nor one of possible errors any."""
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    info = "INFO 11-26 20:12:10 [x.py:1] Cannot use FlashAttention: it is not found"
    assert cause(f"{info}\n{FRAME.format('f')}{oom}").key == "GPU memory"
    warning = info.replace("INFO", "WARNING")
    assert cause(f"{warning}\n{FRAME.format('<module>')}{oom}").key == "GPU memory"
    assert cause(f"{warning}\n{FRAME.format('f')}{oom}").key == ""
    possible = "WARNING 11-26 20:12:10 [x.py:1] which may cause numerical errors nan or inf"
    assert cause(f"{possible}\n{FRAME.format('f')}{oom}").key == "GPU memory"


def test_a_message_ends_before_a_line_that_is_an_error_by_itself() -> None:
    """A title takes the lines below it, an exception without a message none."""
    harmless = 'rsync: [sender] link_stat "/tmp/x" failed: No such file or directory (2)'
    title = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    assert cause(f"{title}\n{harmless}").line == title
    assert cause(f"{FRAME.format('f')}KeyboardInterrupt\n{harmless}").line == "KeyboardInterrupt"


@pytest.mark.parametrize(
    "handled",
    [
        "skipping upload",
        "flash_attn is not there, falling back to sdpa",
    ],
)
def test_another_way_names_what_failed_by_its_function_or_code(handled: str) -> None:
    """A line behind an error may name the code that failed."""
    frames = FRAME.format("push").replace("g()", "api.upload_folder(folder)")
    failed = f"{frames}ModuleNotFoundError: No module named 'flash_attn'"
    ended = f"{FRAME.format('<module>')}ValueError: 42"
    assert cause(f"{failed}\n{handled}\nloaded\n{ended}").line == "ValueError: 42"
    other = "retrying the tokenizer"
    assert cause(f"{failed}\n{other}\nloaded\n{ended}").key == "missing module"


def test_native_code_says_why_before_it_crashes() -> None:
    """A logger's error with its source file counts before the crash behind it."""
    why = "/x/nvshmem/ibrc.cpp:1442: NULL value get_device_list failed"
    assert cause(f"{why}\nSegmentation fault (core dumped)").line == why


def test_an_exception_with_a_reason_is_no_mere_report() -> None:
    """Ascend's codes stand below a header that only states a failure."""
    why = "EJ0001: [PID: 9] Failed to initialize the HCCP process. Reason: a former job runs."
    header = "2026-11-02-10:00:00 (PID:9, Device:3, RankID:3) ERR02200 DIST call hccl api failed."
    error = "RuntimeError: HCCL function error: hcclCommInit, error code is 4"
    assert cause(f"[ERROR] {header}\n{error}\n{header}\nE39999: Inner Error!\n{why}").line == why


def test_what_a_script_says_behind_an_uncaught_exception_explains_it_not() -> None:
    """The exception's process has ended; before it the same words do."""
    ended = f"{FRAME.format('<module>')}ValueError: 42"
    said = "upload failed: ./out to s3://b/out Unable to locate credentials"
    assert cause(f"{ended}\n{said}").line == "ValueError: 42"
    assert cause(f"{said}\n{ended}").key == "cloud credentials"
