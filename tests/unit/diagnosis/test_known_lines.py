"""Known lines in the job's output: each is logged once with its cause, ordinary ones never."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.decisions.head import head_decide as head
from agent.decisions.head.head_state import JobShares, NodeShare
from agent.decisions.shared import HERE
from agent.diagnosis.find_cause import diagnose_logs
from agent.diagnosis.rows import sign_of, table
from agent.frameworks.recipe import NodeSize
from agent.job.share import ShareEnd
from agent.port.protocol import WorkerStats
from agent.port.status_model import WarningStatus
from agent.record import job_lines
from agent.record.job_lines import JobLines, KnownLines
from agent.run.node_run import NodeStats
from agent.settings.redact import MASK, Redactor
from support.fake_runs import status_of
from support.heads import NOTHING_DURABLE, goal, reported
from support.known_lines import find_known_lines
from support.statuses import A_HEAD
from support.worlds import SECRET, plan_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.decisions.shared import Known

SIGNS = {sign_of(words.text) for row in table().values() for words in row.words}
"""Texts of the table itself, as a source for hypothesis."""
PREFIXES = (
    "",
    "(TaskRunner pid=812) ",
    "\x1b[36m(WorkerDict pid=7, ip=10.0.0.3)\x1b[0m ",
    "[rank3]: ",
)
ORDINARY = """\
step 3/40 mean reward 0.61 kl 0.02 nodes 3
step:4 - actor/lr:1e-06 - critic/score/mean:-0.643 - perf/max_memory_allocated_gb:61.2
Global step 12: {'policy_loss': -0.01, 'reward': 0.375, 'return': 0.3}
INFO 11-22 10:00:01 [gpu_model_runner.py:1843] Starting to load model Qwen/Qwen2.5-7B-Instruct...
INFO 11-22 10:00:01 [worker.py:267] the current vLLM instance can use 79.11GiB x 0.85 = 67.24GiB
WARNING: to avoid CUDA out of memory, lower gpu_memory_utilization or max_num_seqs
If you see CUDA out of memory errors, try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
{'on_oom': 'skip', 'exceptions': ['torch.OutOfMemoryError'], 'retry': True}
ulimit -n: open files 1048576, too many open files are no problem
0 Workers (tasks / actors) killed due to memory pressure (OOM), 2 Workers crashed
NCCL INFO Bootstrap : Using eth0:10.0.0.4<0>
NCCL INFO NET/Socket : Using [0]eth0:10.0.0.4<0>
NCCL INFO Channel 00/08 : 0 1 2 3 4 5 6 7
init_process_group: waiting for all ranks, timeout 1800 s
ModuleNotFoundError: No module named 'apex'; falling back to torch's own
UserWarning: No module named 'flash_attn', using sdpa
loading checkpoint shards:  75%|#######   | 3/4 [00:12<00:04,  4.01s/it]
Saving model checkpoint to /data/ckpt/global_step_40
wandb: Tracking run with wandb version 0.18.7
wandb: W&B syncing is set to `offline` in this directory
huggingface/tokenizers: The current process just got forked, after parallelism has already been used
Downloading shards: 100%|##########| 4/4 [01:02<00:00, 15.5s/it]
INFO worker.py:1777 -- Connecting to existing Ray cluster at address: 10.0.0.4:6379...
INFO worker.py:1964 -- Connected to Ray cluster.
(autoscaler +1m2s) Tip: use `ray status` to view detailed cluster status.
(raylet) Spilled 2048 MiB, 12 objects, write throughput 812 MiB/s.
disk /data is 41% full, 2.1 TiB left
retrying (Retry(total=4, connect=None)) after connection broken by 'ReadTimeoutError': /get_reward
reward server answered in 12 ms, returning 64 rewards
Error in sys.excepthook: nothing to see
assert version mismatch is handled: pydantic 2.9 against 2.10
GPU 0: NVIDIA H100 80GB HBM3, memory 61.2/80.0 GiB, util 97%
torch.distributed.elastic: watchdog enabled, collective operation timeout 600 s
Address already in use, trying the next port
posix_fallocate is used for checkpoints
no space for a longer prompt: truncated to 4096 tokens
the answer is 42
Namespace(remote_rm_url=['http://10.0.0.4:5000/get_reward'], on_error='raise')
args: Namespace(reward_server='x', timeout_error='reward request failed: refused')
  remote_rm_url: ['http://10.0.0.4:5000/get_reward']
Namespace(hint='CUDA out of memory. Tried to allocate')
""".splitlines()


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
TRACE = ("Traceback (most recent call last):", '  File "/x/a.py", line 3, in f', "    g()")


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return what is logged from now on: sentences with their levels."""
    logged: list[tuple[str, str]] = []
    monkeypatch.setattr(job_lines, "say", lambda *one: logged.append(one))
    return logged


def remarks_on(lines: Sequence[str]) -> list[str]:
    """Return the keys of the known lines among these."""
    return [known.key for known in find_known_lines(lines)]


def causes_of(line: str) -> tuple[Known, ...]:
    """Return what a process that ends with a line reports as its cause."""
    return tuple(known for known in find_known_lines([line, ENDED]) if not known.is_seen)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(PREFIXES),
            st.sampled_from(ORDINARY)
            | st.text(max_size=80).filter(lambda text: not any(sign in text for sign in SIGNS)),
        ),
        max_size=12,
    )
)
def test_ordinary_lines_have_no_cause(lines: list[tuple[str, str]]) -> None:
    """With any prefix and in any order: no false alarm."""
    assert remarks_on([before + line for before, line in lines]) == []


def test_no_ordinary_line_has_a_cause() -> None:
    """Each of them alone."""
    assert remarks_on([before + line for before in PREFIXES for line in ORDINARY]) == []


def test_each_error_is_logged_once_as_seen_and_once_as_a_cause(said: list[tuple[str, str]]) -> None:
    """However often it is printed; a cause it is once a line shows that a process ended."""
    lines = KnownLines(Redactor((SECRET,)).clean)
    noise = "metric_exporter.cc:206: Export metrics to agent failed: IOError:14"
    for _ in range(3):
        lines.scan(["step 1", OOM, noise, OOM])
    assert [level for _, level in said] == ["info", "info"]
    assert lines.warnings() == []
    assert any(
        text.startswith("seen in the job's output, which goes on: a GPU") for text, _ in said
    )
    for _ in range(3):
        lines.scan([ENDED])
    assert [level for _, level in said] == ["info", "info", "warning"]
    (shown,) = lines.warnings()
    assert shown.check == "job output"
    assert shown.what.startswith("a GPU ran out of memory (torch.OutOfMemoryError: CUDA out")
    assert shown.remedy.startswith("Take a smaller micro batch")


STEPS = ["step 4/40 mean reward 0.61", "step 5/40 mean reward 0.62"]


def test_an_error_that_steps_follow_is_no_cause(said: list[tuple[str, str]]) -> None:
    """Nor one that another try is announced for; steps that stop make a cause of one."""
    lines = KnownLines(str)
    lines.scan([f"{OOM}, retrying", "step 3/40 mean reward 0.61"])
    assert said == []
    lines.scan([OOM, *STEPS, ENDED])
    assert not any(level == "warning" for _, level in said)
    lines.scan([FILES], has_stopped=True)
    assert said[-1][0].startswith("the job's output shows: the limit of open files")
    assert said[-1][1] == "warning"


FILES = "OSError: [Errno 24] Too many open files: 'x'"
ENDED = "E0804 15:34:58.362 4 api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 4) of binary: x"


def test_a_cause_of_another_node_is_logged_once_with_the_node(said: list[tuple[str, str]]) -> None:
    """Neither once per node, nor again after the head's own report, nor with a secret."""
    lines = KnownLines(Redactor((SECRET,)).clean)
    full, files = f"{OOM} {SECRET}", FILES
    (memory,), (handles,) = causes_of(full), causes_of(files)
    lines.add_from_node("podb", (memory,))
    for node in ("podb", "podc"):
        lines.add_from_node(node, (memory,))
    lines.scan([full, ENDED])
    sentence, level = said[0]
    assert len(said) == 1
    assert level == "warning"
    assert sentence.startswith("the job's output on podb shows: a GPU ran out of memory. Take")
    assert "Take a smaller micro batch" in sentence
    assert not any(SECRET in text for text, _ in said)
    lines.add_from_node("podb", (memory, handles))
    assert len(said) == 2
    whats = [one.what[:9] for one in lines.warnings()]
    assert whats == ["podb: a G", "podb: the"]
    logs = {one.node: one.text for one in lines.logs_of_nodes()}
    assert OOM in logs["podb"]
    assert OOM in logs["podc"]


def test_what_ended_on_another_node_is_said_without_a_row(said: list[tuple[str, str]]) -> None:
    """Once, with the node; what is only seen there says nothing here."""
    worker, head_ = KnownLines(str), KnownLines(str)
    worker.scan([*TRACE, "ValueError: 42"])
    head_.add_from_node("podb", worker.for_head)
    said.clear()
    worker.scan([ENDED])
    for _ in range(2):
        head_.add_from_node("podb", worker.for_head)
    sentences = [sentence for sentence, level in said if level == "warning"]
    assert len(sentences) == 2
    assert "the job's output shows: an error whose cause is unknown" in sentences[0]
    assert "the job's output on podb shows: an error whose cause is unknown" in sentences[1]


def test_what_a_worker_s_share_survived_explains_no_later_end() -> None:
    """Steps or many lines follow there, which the head does not see: the worker takes it back."""
    for after in (STEPS, [f"loaded shard {n}" for n in range(200)]):
        worker = KnownLines(str)
        worker.scan([*TRACE, OOM])
        head_ = KnownLines(str)
        head_.add_from_node("node-1", worker.for_head)
        assert diagnose_logs(head_.logs_of_nodes()).key == "GPU memory"

        worker.scan(after)
        assert worker.for_head == ()
        head_.add_from_node("node-1", worker.for_head)
        assert diagnose_logs(head_.logs_of_nodes()).line == ""


def test_a_report_takes_back_what_an_earlier_one_had() -> None:
    """Also where it has nothing else: once, and then it has no statistics again."""
    stats = NodeStats(str)
    share = stats.share_lines(1)
    share.known.scan([*TRACE, OOM])
    first = stats.for_report()
    assert first is not None
    assert [known.key for known in first.known] == ["GPU memory"]
    share.known.scan(STEPS)
    second = stats.for_report()
    assert second is not None
    assert second.known == ()
    assert stats.for_report() is None


def test_what_was_found_in_an_earlier_attempt_explains_no_later_one(
    said: list[tuple[str, str]],
) -> None:
    """It adds no warning to the later one's; the same cause is logged again there."""
    lines = JobLines(str)
    (memory,) = causes_of(OOM)
    lines.known.add_from_node("podb", (memory,))
    lines.begin_attempt(2)
    assert lines.known.logs_of_nodes() == ()
    lines.known.add_from_node("podc", (memory,))
    assert len(said) == 2
    assert [one.node for one in lines.known.logs_of_nodes()] == ["podc"]
    assert [one.what[:5] for one in lines.known.warnings()] == ["podc:"]


def test_no_secret_and_no_control_character_is_logged(said: list[tuple[str, str]]) -> None:
    """Nor a part of a secret where the line is cut."""
    start = "OSError: [Errno 28] No space left on device: \x1b[31m"
    for length in range(80, 160):
        lines = KnownLines(Redactor((SECRET,)).clean)
        lines.scan([f"{start}{'x' * length}{SECRET}\x07", ENDED])
    assert len(said) == 80
    assert not any(SECRET[:8] in sentence or "\x1b" in sentence for sentence, _ in said)
    assert any(MASK in sentence for sentence, _ in said)
    assert all(SECRET[:8] not in one.what for one in lines.warnings())


def test_pieces_of_the_output_do_not_matter(said: list[tuple[str, str]]) -> None:
    """A line in two pieces, or without an end, is checked all the same."""
    lines = JobLines(Redactor(()).clean)
    lines.known = KnownLines(Redactor(()).clean)
    for piece in (b"hello\nOSError: [Errno 24] Too ma", b"ny open files: 'x'\nstep 2\n"):
        lines.write(piece, lambda _pause: False)
    assert len(said) == 1
    lines.write(b"pthread_create failed: Resource temporarily unavailable", lambda _pause: False)
    lines.close()
    assert len(said) == 2


def test_what_is_known_is_a_warning_of_the_status() -> None:
    """It is among those that only clients with credentials see."""
    state = head.first_state(goal(), NOTHING_DURABLE)
    watched = status_of(state, plan_of({}), get_state=lambda: state)
    watched.job_lines.write(f"{FILES}\n{ENDED}\n".encode(), lambda _pause: False)
    warnings = watched.with_private(A_HEAD).warnings
    assert isinstance(warnings, tuple)
    assert warnings[-1] == WarningStatus.of(watched.job_lines.known.warnings()[0])
    failed = NodeShare("pod2", 1, NodeSize(0), ShareEnd(1, 0), 1.0)
    shares = {HERE: NodeShare("node-a", 0, NodeSize(0)), "agent2": failed}
    state = replace(state, shares=JobShares(shares))
    watched.worker_stats = {"agent2": WorkerStats(known=causes_of(OOM), attempt=1)}
    watched.apply_event(reported(2))
    warnings = watched.with_private(A_HEAD).warnings
    assert isinstance(warnings, tuple)
    assert any(one.what.startswith("pod2: a GPU ran out of memory") for one in warnings)
    watched.worker_stats = {"agent2": WorkerStats(known=causes_of(FILES), attempt=0)}
    watched.apply_event(reported(2))  # of ranks that have ended
    assert watched.with_private(A_HEAD).warnings == warnings
    assert diagnose_logs(watched.logs_of_nodes()).cause == "a GPU ran out of memory"
