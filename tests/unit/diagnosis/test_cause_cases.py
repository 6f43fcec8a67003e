"""What a log shows: cases with their answers, lines that look alike, examples of rows.toml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.base.text import parse_toml
from agent.base.typed import convert
from agent.base.value import Value
from agent.decisions.shared import shortened
from agent.diagnosis.errors.log_parser import parse_log
from agent.diagnosis.errors.prefixes import read_line
from agent.diagnosis.find_cause import UNKNOWN, diagnose_logs
from agent.diagnosis.live_errors import LiveErrors
from agent.diagnosis.rows import ANY, Row, Weight, Words, explain, known_signs, table
from agent.diagnosis.searched_log import Log
from support.known_lines import find_known_lines

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

    from agent.decisions.shared import Known

DATA = Path(__file__).parents[2] / "data"


# --- cases ---------------------------------------------------------------------------------------


class Case(Value, forbid_unknown_fields=True):
    """A log with its answer; cause_cases.toml explains the fields."""

    why: str
    key: str
    log: str = ""
    error: str = ""
    frames: tuple[str, ...] = ()
    of_ray: bool = False
    cause: str | None = None
    line: str | None = None
    to_do: tuple[str, ...] = ()
    not_to_do: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the log's text."""
        if self.log:
            return self.log
        lines = ["Traceback (most recent call last):"]
        for frame in self.frames:
            place, _, called = frame.partition(" in ")
            file, _, number = place.rpartition(":")
            function, _, code = called.partition(": ")
            lines.append(f'  File "{file}", line {number}, in {function}')
            if code:
                lines.append(f"    {code}")
        return "\n".join([*lines, self.error])


def read_cases() -> list[Case]:
    """Return the cases of all groups."""
    cases = []
    for group in parse_toml((DATA / "cause_cases.toml").read_text(encoding="utf-8"))["group"]:
        for case in group.pop("cases"):
            frames = [*group.get("frames", ()), *case.get("frames", ())]
            cases.append(convert({**group, **case, "frames": frames}, Case))
    return cases


CASES = read_cases()


def is_like(pattern: str, text: str) -> bool:
    """Return whether a text is as a case has it, where … is any text."""
    expression = ".*".join(re.escape(part) for part in pattern.split(ANY))
    return re.fullmatch(expression, text, re.DOTALL) is not None


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case.key or 'no row'}-{at}" for at, case in enumerate(CASES)]
)
def test_a_log_has_its_answer(case: Case) -> None:
    """The row, its sentence and remedy, and the quoted line; while the job runs, no other row."""
    text = case.text()
    found = diagnose_logs([Log("", "job.log", text, of_ray=case.of_ray)])
    shown = found.remedy().partition(" It shows in ")[0]
    said = f"{found.cause}. {found.what_to_do} {shown}"
    assert found.key == case.key, case.why
    assert case.cause is None or is_like(case.cause, found.cause), (found.cause, case.why)
    assert case.line is None or is_like(case.line, found.line), (found.line, case.why)
    assert [words for words in case.to_do if words not in shown] == [], (shown, case.why)
    assert [words for words in case.not_to_do if words in said] == [], (said, case.why)

    live = {known.key for known in find_known_lines(text.split("\n")) if not known.is_noise}
    assert live <= {case.key, UNKNOWN}, case.why


MISSES = [
    tuple(line.split(" :: ", 1))
    for line in (DATA / "near_misses.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(
    ("key", "line"), MISSES, ids=[f"{key}-{at}" for at, (key, _) in enumerate(MISSES)]
)
def test_a_near_miss_is_not_that_cause(key: str, line: str) -> None:
    """Neither at the end of a run nor while it runs."""
    assert key in table()
    assert diagnose_logs([Log("", "job.log", line)]).key != key
    assert key not in [known.key for known in find_known_lines([line])]


# --- examples of rows.toml -----------------------------------------------------------------------

NEARBY = (
    '  File "/x/a.py", line 9, in update_weights\n  File "/x/b.py", line 9, in load_weight',
    '  File "/x/verl/utils/dataset/rl_dataset.py", line 9, in prompt_key',
    '  File "/x/transformers/models/auto/configuration_auto.py", line 9, in __getitem__',
    '  File "/x/multiprocessing/popen_fork.py", line 66, in _launch',
    '  File "/x/vllm/v1/engine/core.py", line 9, in _initialize_kv_caches',
    '  File "/x/multiprocessing/shared_memory.py", line 9, in __init__',
    '  File "/x/vllm/model_executor/layers/linear.py", line 9, in divide',
    '  File "/x/site-packages/vllm/transformers_utils/config.py", line 9, in <module>',
    '  File "/x/torch/optim/adamw.py", line 9, in step',
    '  File "/x/site-packages/a/b.py", line 9, in c\n    exec(source)\n  File "<string>", line 2',
    '  File "/x/sglang/srt/mem_cache/memory_pool.py", line 9, in _create_buffers',
    '  File "/x/verl/utils/config.py", line 9, in omega_conf_to_dataclass',
    '  File "/x/transformers/tokenization_utils_base.py", line 9, in apply_chat_template',
    '  File "/x/huggingface_hub/file_download.py", line 9, in https://huggingface.co',
    '  File "/x/transformers/trainer_state.py", line 9, in load_from_json',
    '  File "/x/safetensors/torch.py", line 9, in safe_open',
    '  File "/x/openrlhf/utils/remote_rm_utils.py", line 9, in request_api_wrapper',
    '  File "/x/search_r1/llm_agent/generation.py", line 9, in _batch_search',
    '  File "/x/trl/extras/vllm_client.py", line 9, in update_named_param',
    '  File "/x/trl/extras/vllm_client.py", line 9, in init_communicator',
    '  File "/x/wandb/sdk/wandb_init.py", line 9, in init',
    '  File "/x/vllm/config/parallel.py", line 9, in _verify_args',
    '  File "/x/torch/distributed/checkpoint/state_dict.py", line 9, in set_model_state_dict',
    '  File "/x/vllm/models/qwen.py", line 9, in load_weights',
    '  File "/x/job.py", line 9, in main\n  File "<frozen os>", line 679, in __getitem__',
    '  File "/x/job.py", line 9, in main\n    assert config.batch % config.ranks == 0',
    '  File "/x/torch/distributed/checkpoint/a.py", line 9, in f\n    assert metadata is not None',
    '  File "/x/subprocess.py", line 9, in _execute_child',
    '  File "/x/transformer_engine/pytorch/__init__.py", line 9, in _load_library',
    '  File "/x/site-packages/tensordict/_reductions.py", line 9, in <module>',
    "node-1:1:2 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>",
    "include/shm.h:27 NCCL WARN Call to shm_open failed : Permission denied",
    '  File "/usr/lib/python3/site-packages/datasets/table.py", line 9, in array_cast',
    "[c10d] The IPv4 network addresses of (node-0, 29500) cannot be retrieved (gai error: -2)",
    '  File "/x/vllm/v1/worker/gpu_model_runner.py", line 9, in load_model',
    '  File "/x/torch/utils/data/_utils/pin_memory.py", line 9, in pin_memory',
    '  File "/x/tools/checkpoint_conversion/llama.py", line 9, in main',
    '  File "/x/sglang/srt/mem_cache/memory_pool_host.py", line 9, in init_kv_buffer',
    '  File "/x/huggingface_hub/_commit_api.py", line 9, in _upload_lfs_files',
    '  File "/x/numpy/lib/npyio.py", line 9, in load',
    '  File "/x/bridge/training/checkpoints.py", line 9, in load_args_from_checkpoint',
    '  File "/x/math_reward.py", line 9, in score',
    '  File "/x/a.py", line 9, in f\n    assert a == b',
)
"""Lines before an error that show what it is about."""
GOES_ON = re.compile(r"\b(?:retry|retrying|ignored|skipping)\b", re.IGNORECASE)
"""What a line has whose program goes on from the error that it states."""
OUT_OF_MEMORY = "RuntimeError: CUDA out of memory"


def context_of(words: Words) -> str:
    """Return a line that the message wants to see before its own."""
    around = words.near or words.caller
    shown = f"\n{words.example}"
    return next((line for line in NEARBY if around and re.search(around, line + shown)), "")


def lines_of(words: Words) -> list[str]:
    """Return the lines of an example, behind what shows what it is about."""
    context = context_of(words)
    before = [*context.split("\n"), "    the line of code"] if context else ["step 3/40"]
    return [*before, *words.example.split("\n")]


def reported(lines: list[str]) -> list[Known]:
    """Return what is reported of a job that prints these lines and goes on."""
    errors = LiveErrors()
    return [*errors.read([*lines, "loading", "loaded"]), *errors.close()]


def assert_live(row: Row, lines: list[str]) -> None:
    """Assert that a live row, and no other, is reported as seen or as a cause."""
    live = [known for known in reported(lines) if not known.is_noise]
    assert {known.key for known in live} <= {row.key, UNKNOWN}, lines
    assert live or not row.is_live, lines
    assert all("the job's output" in known.sentence() for known in live)
    assert all(any(known.line in line for line in lines) for known in live)


@pytest.mark.parametrize("row", table().values(), ids=table())
def test_each_example_has_its_row(row: Row) -> None:
    """Each message matches its example, and no earlier row does."""
    for words in row.words:
        context = context_of(words)
        assert bool(context) or not (words.near or words.caller), words.example
        body = read_line(words.example.split("\n")[0]).body.strip()
        assert words.match(words.example, body, (context,)), words.example
        occurrences = parse_log(lines_of(words), signs=known_signs()).occurrences
        assert occurrences, words.example
        known = explain(occurrences[-1].error, "noise", "cause", "symptom", of_ray=row.of_ray)
        assert known is not None, words.example
        assert known[0].key == row.key, words.example


def of_kind(kind: str) -> list[ParameterSet]:
    """Return the rows of a kind."""
    return [pytest.param(row, id=key) for key, row in table().items() if row.kind == kind]


def examples_that_end(row: Row) -> list[list[str]]:
    """Return the lines of each example of a row whose program does not go on."""
    return [lines_of(words) for words in row.words if not GOES_ON.search(words.example)]


@pytest.mark.parametrize("row", of_kind("cause"))
def test_the_example_of_a_cause_is_named(row: Row) -> None:
    """At the end with its names and its line, and live if the row is."""
    is_of_ray = row.of_ray or row.weight is Weight.LAST
    for lines in examples_that_end(row):
        found = diagnose_logs([Log("", "job.log", "\n".join(lines), of_ray=is_of_ray)])
        assert found.key == row.key, lines
        names = {*re.findall(r"\{(\w+)\}", found.cause + found.what_to_do)}
        assert names <= {"reward_url"}, lines
        before, _, quote = found.remedy().partition(" It shows in job.log")
        assert before.startswith(found.cause), lines
        assert quote.endswith(f": {shortened(found.line)!r}"), lines
        assert_live(row, lines)


@pytest.mark.parametrize("row", of_kind("symptom"))
def test_the_example_of_a_symptom_is_no_cause(row: Row) -> None:
    """What led to it may be looked for; nothing is asserted."""
    for lines in examples_that_end(row):
        found = diagnose_logs([Log("", "job.log", "\n".join(lines))])
        assert found.row is None, lines
        assert UNKNOWN in found.remedy(), lines
        assert_live(row, lines)


@pytest.mark.parametrize("row", of_kind("noise"))
def test_noise_is_never_a_cause(row: Row) -> None:
    """A harmless line that looks like an error hides no cause, and is called noise if reported."""
    for lines in examples_that_end(row):
        assert diagnose_logs([Log("", "job.log", "\n".join(lines))]).row is None, lines
        behind = "\n".join([OUT_OF_MEMORY, *lines, *lines])
        assert diagnose_logs([Log("", "job.log", behind)]).key == "GPU memory", lines
        live = reported(lines)
        assert [known.is_noise for known in live] == ([True] if row.is_live else []), lines
        assert all(known.sentence().startswith("noise in the job's output") for known in live)
