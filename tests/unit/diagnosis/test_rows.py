"""Rows match parsed errors by their words and frames, which fill their sentences."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.base.text import parse_toml
from agent.diagnosis import rows
from agent.diagnosis.errors.parsed_error import ErrorKind, LogLevel, ParsedError, TracebackFrame
from agent.diagnosis.find_cause import Diagnosis
from agent.diagnosis.frame_text import frame_text
from agent.diagnosis.rows import Again, Case, Row, Words, short_name, table
from agent.frameworks import framework_named

LABELS = Path(__file__).parents[2] / "causes" / "labels.toml"
CAUSES = [row for row in table().values() if row.kind == "cause"]
SIGNAL = "signal only works in main thread of the main interpreter"


def python_error(type_: str, message: str, *frames: TracebackFrame) -> ParsedError:
    """Return an exception as the parser gives it."""
    line = f"{type_}: {message}"
    return ParsedError(ErrorKind.PYTHON, line, type_, message, frames)


SAID = python_error("ValueError", "x")
SAYS = Words(example="ValueError: x", text="ValueError: x")
MEMORY = Words(example="torch.OutOfMemoryError: x", type="OutOfMemoryError")
DATASET = Words(example="KeyError: 'x'", type="KeyError", near="rl_dataset")
VERIFIER = Words(example="KeyError: 'x'", type="KeyError", near="verifier")
IN_DATASET = TracebackFrame("/x/verl/utils/dataset/rl_dataset.py", 9, "_build_messages")
IN_LIBRARY = python_error(
    "KeyError", "'x'", TracebackFrame("/x/site-packages/urllib3/connection.py", 9, "request")
)
IN_JOB = python_error("KeyError", "'x'", TracebackFrame("/w/train.py", 3, "upload"))
BEFORE = ("asking the verifier failed", "a", "b", "c")
MATCHES = {
    "a type with its module": (MEMORY, python_error("torch.OutOfMemoryError", "x"), True),
    "a type without it": (MEMORY, python_error("OutOfMemoryError", "x"), True),
    "a part of a type": (MEMORY, python_error("MyOutOfMemoryError", "x"), False),
    "a warning": (SAYS, replace(SAID, level=LogLevel.WARNING), False),
    "words of a warning": (replace(SAYS, mild=True), replace(SAID, level=LogLevel.WARNING), True),
    "a frame near it": (DATASET, python_error("KeyError", "'x'", IN_DATASET), True),
    "no frame near it": (DATASET, python_error("KeyError", "'x'"), False),
    "lines before a library's": (VERIFIER, replace(IN_LIBRARY, before=BEFORE), True),
    "lines before the job's own code": (VERIFIER, replace(IN_JOB, before=BEFORE), False),
    "a line long before": (VERIFIER, replace(IN_LIBRARY, before=(*BEFORE, "d")), False),
}


@pytest.mark.parametrize(("words", "error", "is_match"), MATCHES.values(), ids=MATCHES)
def test_words_match_an_error(words: Words, error: ParsedError, *, is_match: bool) -> None:
    """By its exact type, its level, its frames, and the lines before where only a library shows."""
    assert words.match_error(error) == is_match


def test_the_place_is_no_frame_of_python_itself() -> None:
    """The frame that installs the handler, not that of Python's own module."""
    user = TracebackFrame("/x/openrlhf/cli/serve.py", 31, "start")
    own = TracebackFrame("/usr/lib/python3.12/signal.py", 58, "signal")
    row = table()["signal in a thread"]
    cause = row.explain(python_error("ValueError", SIGNAL, user, own))
    assert cause is not None
    assert cause.sentence.endswith("(/x/openrlhf/cli/serve.py:31)")
    assert row.explain(python_error("ValueError", "another")) is None


def test_the_frames_of_an_error_are_one_text() -> None:
    """The exception first, then its frames from the innermost, then what it was raised from."""
    inner = python_error("OSError", "closed")
    read = TracebackFrame("/w/data.py", 30, "read", "x = row['a']")
    frozen = TracebackFrame("<frozen importlib._bootstrap>", 1, "_load")
    error = python_error("pkg.KeyError", "'a'", TracebackFrame("/w/a.py", 3, "main"), read, frozen)
    assert frame_text(replace(error, cause=inner)).split("\n") == [
        "KeyError: 'a'",
        "/w/data.py:30 in read: x = row['a']",
        "/w/a.py:3 in main: ",
        "from OSError: closed",
    ]


def test_who_asks_fills_the_sentences() -> None:
    """The expression must match, a case that matches counts before the row, and names are read."""
    words = (Words(example="KeyError: 'a'", type="KeyError"),)
    cases = (
        Case(r".*\n/w/data", cause="{name} is no column ({nothing})", what_to_do="See {place}"),
    )
    row = Row(
        kind="cause",
        key="a key",
        cause="{user} reads {name}",
        what_to_do="Look at {name}",
        words=words,
        sources=(),
        asks=r"KeyError: (?:'(?P<name>\w+)'|(?P<name2>\d+)(?P<nothing>x)?)",
        cases=cases,
    )
    library = TracebackFrame("/x/site-packages/trl/data.py", 9, "get")
    known = row.explain(python_error("KeyError", "'a'", library))
    assert known is not None
    assert (known.sentence, known.remedy) == ("trl reads a", "Look at a")
    special = row.explain(python_error("KeyError", "7", TracebackFrame("/w/data.py", 3, "read")))
    assert special is not None
    assert special.sentence == "7 is no column"
    assert row.explain(python_error("KeyError", "('a', 'b')", library)) is None


def test_each_key_is_of_one_row() -> None:
    """Of two rows with one key the later would replace the former."""
    data = parse_toml(Path(rows.__file__).with_name("rows.toml").read_text(encoding="utf-8"))
    keys = [row["key"] for kind in ("noise", "cause", "symptom") for row in data[kind]]
    assert [key for key, count in Counter(keys).items() if count > 1] == []


# --- the table -----------------------------------------------------------------------------------


def test_each_row_is_whole() -> None:
    """A row has words, a source, and sentences that hide what an expression could not read."""
    text = LABELS.read_text(encoding="utf-8")
    labels = {*re.findall(r'^label = "(\w+)"$', text, re.MULTILINE)}
    for row in table().values():
        assert row.words, row.key
        assert row.sources, row.key
        assert set(row.labels) <= labels, row.key
        cause_, do = row.filled("")
        assert "{" not in cause_, row.key
        assert "{" not in do.replace("{reward_url}", ""), row.key
        assert not cause_.endswith("."), row.key
        for words in row.words:
            cause, remedy = row.filled(words.example)
            assert "(?)" not in cause, words.example
            assert "None of" not in cause, words.example
            assert "{" not in remedy.replace("{reward_url}", ""), words.example


def test_the_advice_to_retry_agrees_with_the_labels() -> None:
    """The rows and the corpus agree about which causes pass by themselves."""
    text = LABELS.read_text(encoding="utf-8")
    again = dict(re.findall(r'label = "(\w+)"\nclass = "\w+"\ntemporary = (\S+)', text))
    for row in CAUSES:
        if len(row.labels) == 1:
            assert row.again.value == {"true": "yes", "false": "no"}.get(
                again[row.labels[0]], "either"
            ), row.key
    assert {row.again for row in CAUSES} == set(Again)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("verl", "actor_rollout_ref.rollout.gpu_memory_utilization"),
        ("openrlhf", "--vllm.gpu_memory_utilization"),
        ("trl", "vllm_gpu_memory_utilization"),
        ("", "raise gpu_memory_utilization"),
    ],
)
def test_a_remedy_has_the_names_of_the_runs_framework(name: str, setting: str) -> None:
    """Where a recipe runs, its own setting is named, and no other framework's."""
    framework = framework_named(name)
    sentence = framework.in_own_words(table()["KV cache"].what_to_do)
    assert setting in sentence
    prompts = framework.in_own_words(table()["prompt too long"].what_to_do)
    assert ("data.filter_overlong_prompts" in prompts) is (name in {"verl", ""})
    if name:
        sglang = framework.in_own_words(table()["KV cache of SGLang"].what_to_do)
        assert "in verl" not in sglang
    assert framework.in_own_words("Look at the log") == "Look at the log"


LONG_VALUES = {
    "path": "/mnt/lustre/team-rl/checkpoints/qwen3-235b-grpo/run-2026-11-26/a/global_step_1200",
    "peer": "ip-10-128-254-117.us-west-2.compute.internal",
    "host": "rollout-server-headless.reinforcement-learning.svc.cluster.local",
    "why": "Requested node configuration is not available in this partition",
    "most": "95",
    "has": "3.20.3",
    "needs": "6.31.1",
    "version": "3.12",
    "user": "huggingface_hub",
    "package": "transformer_engine",
    "owner": "ActorRolloutRefArguments",
    "status": "500",
    "reason": "Internal Server Error",
    "port": "30000",
    "module": "vllm.model_executor.layers.quantization",
    "difference": "missing 1 required positional argument: 'config'",
    "field": "engine_kwargs.vllm",
}


LONG_VALUE = "actor_rollout_ref.rollout.engine_kwargs.vllm.disable_log_requests_of_all_ranks"


@pytest.mark.parametrize("row", CAUSES)
def test_a_sentence_with_long_names_can_be_read(row: Row) -> None:
    """With long paths, hosts and keys: at most 240 characters, with something to do in it."""
    names = re.findall(r"\{(\w+)\}", row.cause + row.what_to_do)
    values = {name: short_name(LONG_VALUES.get(name, LONG_VALUE)) for name in names}
    diagnosis = Diagnosis(
        line="the line",
        log="job.log",
        node="gpu-pool-h100-worker-127",
        rank=1023,
        row=row,
        cause=row.cause.format(**values),
        what_to_do=row.what_to_do.format(**{**values, "reward_url": "http://10.128.254.117:8000"}),
    )
    said = diagnosis.remedy().partition(" It shows in ")[0]
    assert len(said) <= 240
    assert len(said) > len(diagnosis.cause) + 40, "no room for what to do"
