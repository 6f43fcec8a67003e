"""Causes in whole logs: how many are right, which of several counts, and hostile logs."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.errors.prefixes import read_line
from agent.diagnosis.find_cause import UNKNOWN, Diagnosis, diagnose_logs, plain_lines
from agent.diagnosis.live_errors import LiveErrors
from agent.diagnosis.searched_log import Log
from causes.ordinary.lines import compose
from support.known_lines import find_known_lines
from tools.causes.__main__ import main
from tools.causes.cases import Result, diagnosis, judge, live_answer, load

CASES = Path(__file__).parents[2] / "causes"


def log(text: str, node: str = "", name: str = "job.log") -> Log:
    """Return a log of a job."""
    return Log(node, name, text)


def cause(*texts: str) -> Diagnosis:
    """Return the diagnosis of the logs of some nodes."""
    return diagnose_logs([log(text, f"node-{number}") for number, text in enumerate(texts)])


def labels(*texts: str) -> tuple[str, ...]:
    """Return the labels of the row that explains the logs of some nodes."""
    row = cause(*texts).row
    return () if row is None else row.labels


# --- measured ------------------------------------------------------------------------------------


def test_causes_are_right_in_most_cases() -> None:
    """Right in nearly all of the corpus's seen cases, and hardly ever wrong."""
    counts = Counter(judge(case, diagnosis(case)) for _, case in load(CASES / "seen"))
    total = sum(counts.values())
    assert counts[Result.RIGHT] >= 0.94 * total
    assert counts[Result.WRONG] <= 0.015 * total


def test_no_cause_is_wrong_while_the_job_runs() -> None:
    """A cause is reported where a process ended; the rest only as seen."""
    counts = Counter(judge(case, live_answer(case)) for _, case in load(CASES / "seen"))
    total = sum(counts.values())
    assert counts[Result.RIGHT] >= 0.55 * total
    assert counts[Result.WRONG] <= 0.01 * total


def test_ordinary_lines_have_no_cause() -> None:
    """Logs of successful runs match no row, at the end of a run and while it runs."""
    lines = compose(20_000)
    began = time.process_time()
    found = diagnose_logs([log("\n".join(lines))])
    assert time.process_time() - began < 5  # some 0.5 s on an idle machine
    assert found.row is None
    live = find_known_lines(lines)
    assert [known.key for known in live if not known.is_noise] == []


def test_the_figures_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`scripts/causes` counts the cases of a folder, and shows the misses of it."""
    (tmp_path / "own.toml").write_text(
        '[[case]]\nid = "one"\ncause = "disk_full"\nalso_acceptable = []\nevidence = "x"\n'
        '[case.logs]\nhead = ["OSError: [Errno 122] Disk quota exceeded"]\n'
    )
    assert main([str(tmp_path), "-v"]) == 0
    printed = capsys.readouterr().out
    assert "wrong: one is disk_full, answered disk_quota" in printed
    assert re.search(r"all +0 +1 +0   of 1", printed)


# --- lines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix",
    [
        "(WorkerDict pid=7) ",
        "\x1b[36m(WorkerDict pid=7, ip=10.0.0.3)\x1b[0m ",
        "[rank3]: ",
        "[default3]:",
        "(WorkerDict pid=7) [rank3]: ",
        "ERROR 01-04 08:16:46 [core.py:396] ",
        "(EngineCore_0 pid=7) ERROR 01-04 08:16:46 [core.py:396] ",
        "[2025-11-09 14:13:15 TP14] ",
        "2025-11-09 14:13:15,123 - ERROR - ",
        "node-7: ",
        "3: ",
    ],
)
def test_prefixes_do_not_matter(prefix: str) -> None:
    """What a launcher writes before a line changes nothing."""
    line = f"{prefix}ModuleNotFoundError: No module named 'apex'"
    assert cause(line).key == "missing module"


def test_ranks_are_read() -> None:
    """From the prefixes of torch and vLLM."""
    assert read_line("[rank3]: x").rank == 3
    line = "(WorkerDict pid=4) [rank12]:[E1117 00:51:46.1 x.cpp:1] [Rank 12] x"
    assert read_line(line).rank == 12
    assert read_line("(VllmWorker rank=5 pid=4) ERROR x").rank == 5
    assert read_line("x").rank is None


def test_lines_of_code_are_no_messages() -> None:
    """A traceback's line of code quotes a message; the message itself comes below."""
    code = "raise RuntimeError('CUDA error: out of memory')"
    text = f'[rank3]:   File "/x/train.py", line 9, in main\n[rank3]:     {code}\n'
    assert cause(text).row is None
    found = cause(f"{text}[rank3]: RuntimeError: CUDA error: out of memory")
    assert (found.line, found.rank) == ("RuntimeError: CUDA error: out of memory", 3)


# --- weighing ------------------------------------------------------------------------------------

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
WATCHDOG = "[rank0]:[E1117 00:51:46.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"


def test_a_cause_counts_before_its_symptom() -> None:
    """A later watchdog line, or one of another node, hides no cause; node and rank are named."""
    found = cause(WATCHDOG, f"[rank9]: {OOM}")
    assert (found.key, found.node, found.rank) == ("GPU memory", "node-1", 9)
    assert found.remedy().startswith("a GPU ran out of memory on node-1 (rank 9). Take a ")
    assert cause(f"{OOM}\n{WATCHDOG}").key == "GPU memory"


def test_the_earlier_of_two_causes_counts() -> None:
    """In one log, and between nodes if both have times."""
    files = "OSError: [Errno 24] Too many open files"
    assert cause(f"{OOM}\n{files}").key == "GPU memory"
    assert cause(f"{files}\n{OOM}").key == "open files"
    early, late = "[2025-01-01 10:00:00,1] ", "[2025-01-01 10:00:30,1] "
    assert cause(late + OOM, early + files).key == "open files"
    assert cause(early + OOM, late + files).key == "GPU memory"


def test_a_lost_connection_is_less_than_a_cause() -> None:
    """A rank that ended leaves its peers with failed connections, whichever comes first."""
    refused = "socket.cc:1 NCCL WARN socketStartConnect: Connect to 10.0.0.4<1> failed : refused"
    completion = "NCCL WARN NET/IB : Got completion from peer 10.0.0.4<1> with error 12, opcode 0"
    for line in (refused, completion):
        assert cause(line, OOM).key == "GPU memory"
        assert labels(line, WATCHDOG) in {("nccl_socket",), ("infiniband_link",)}
        first = 'Traceback:\n  File "x.py", line 1\n    go()\nRuntimeError: shapes differ'
        assert cause(f"{first}\n{line}").line == "RuntimeError: shapes differ"


def test_a_fault_that_is_printed_last_counts() -> None:
    """The kernel's and the scheduler's lines come after what they lead to."""
    xid = "[9.1] NVRM: Xid (PCI:0000:14:00): 79, GPU has fallen off the bus."
    assert (
        cause(f"RuntimeError: CUDA error: an illegal memory access was encountered\n{xid}").key
        == "Xid"
    )


def test_an_error_that_was_overcome_is_no_cause() -> None:
    """Neither one that was tried again, nor one that steps followed, nor a warning."""
    unknown = (
        'Traceback (most recent call last):\n  File "x.py", line 1\nRuntimeError: shapes differ'
    )
    step = "(TaskRunner pid=1) step:7 - actor/loss:0.1\n(TaskRunner pid=1) step:8 - actor/loss:0.1"
    refused = "OSError: [Errno 98] Address already in use"
    assert cause(f"{refused}, retrying\n{unknown}").line == "RuntimeError: shapes differ"
    assert cause(f"{refused}\n{step}\n{unknown}").line == "RuntimeError: shapes differ"
    assert cause(f"WARNING: {refused}\n{unknown}").line == "RuntimeError: shapes differ"
    assert cause(f"{refused}\n{unknown}").key == "port taken"


def test_wrappers_are_never_the_first_error() -> None:
    """The innermost exception is named where no row matches, whatever is around it."""
    text = """\
ray.exceptions.RayTaskError(ValueError): ray::TaskRunner.run() (pid=1, ip=10.0.0.4, actor_id=a)
  File "/x/trainer.py", line 3, in fit
ray.exceptions.RayTaskError(ValueError): ray::WorkerDict.go() (pid=2, ip=10.0.0.5, actor_id=b)
  File "/x/worker.py", line 3, in go
ValueError: the answer is 42
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
    found = cause(text)
    assert (found.row, found.line, found.ip) == (
        None,
        "ValueError: the answer is 42",
        "10.0.0.5",
    )
    remedy = found.remedy()
    assert remedy == (
        "Look at the first error on node-0, in job.log: 'ValueError: the answer is 42':"
        " its cause is unknown to pod-agent"
    )


def test_a_symptom_alone_is_no_cause() -> None:
    """It is named with what to look for, and nothing is asserted."""
    found = cause(WATCHDOG)
    assert found.row is None
    assert found.remedy().startswith("unknown to pod-agent on node-0 (rank 0): a collective ")
    assert "Look for the rank that is silent" in found.remedy()


def test_two_that_remain_possible_are_both_named() -> None:
    """A killed process may have had two reasons."""
    found = cause("E0804 15:34:58.362 api.py:869] failed (exitcode: -9) local_rank: 0 (pid: 4)")
    assert found.row is not None
    assert found.row.labels == ("host_memory_kernel", "preempted")
    assert "a process got SIGKILL: the node's memory ran out, or " in found.remedy()
    kernel = "kernel: Out of memory: Killed process 4 (python) total-vm:2kB"
    assert labels(f"failed (exitcode: -9) local_rank: 0 (pid: 4)\n{kernel}") == (
        "host_memory_kernel",
    )


def test_the_nearer_log_is_asked_first() -> None:
    """The job's output comes before Ray's log."""
    near = Log("", "job.log", "RuntimeError: CUDA out of memory", of_ray=True)
    far = Log("", "raylet.out", "Failed accept4: Too many open files", of_ray=True)
    assert diagnose_logs([near, far]).key == "GPU memory"
    assert diagnose_logs([far, near]).key == "open files"


def test_no_log_no_diagnosis() -> None:
    """Without logs, or with empty ones, nothing is said."""
    for logs in ([], [log("")], [log("\n\n")]):
        assert diagnose_logs(logs) == Diagnosis()
        assert diagnose_logs(logs).remedy() == ""


# --- hostile input -------------------------------------------------------------------------------

HOSTILE = [
    "a" * 9_000,
    "a " * 4_000,
    "batch " * 2_000,
    "(Error: " * 1_000,
    "Error data " * 1_000,
    "heads " * 2_000,
    "world_size checkpoint " * 500,
    "'" * 9_000,
    "/a" * 4_000,
    " " * 9_000,
    "[rank0]:" * 1_000,
    "(a pid=1) " * 1_000,
    "Error placement group " * 500,
    "Max retries exceeded with url: /reward " * 300,
    "\x1b[31m" * 2_000,
    "\ufffd\x00\u202e" * 2_000,
]


@pytest.mark.timeout(120)
def test_hostile_logs_are_searched_in_passing() -> None:
    """Long lines, control characters and floods of look-alikes cost little."""
    began = time.process_time()
    diagnose_logs([log("\n".join(HOSTILE * 5))])
    find_known_lines(HOSTILE * 5)
    diagnose_logs([log("OSError: Error data x does batch not " * 30 + "\n" + OOM)])
    assert time.process_time() - began < 30


@given(st.lists(st.text(max_size=200), max_size=8))
def test_any_log_has_a_diagnosis(lines: list[str]) -> None:
    """Whatever a log holds, the search for its cause does not fail."""
    found = diagnose_logs([log("\n".join(lines), "n")])
    assert isinstance(found.remedy(), str)
    assert all("\n" not in line for line in plain_lines("\n".join(lines)))


def test_context_may_lie_in_an_earlier_piece() -> None:
    """While the job runs, its output comes in pieces; an error's frames may be in the one before."""
    errors = LiveErrors()
    assert errors.read(['  File "/x/rl_dataset.py", line 9, in _build_messages']) == []
    assert errors.read(["    messages = row['problem']"]) == []
    assert [known.key for known in errors.read(["KeyError: 'problem'"])] == ["data column"]
    assert [known.key for known in find_known_lines(["x", "KeyError: 'problem'"])] == [UNKNOWN]
