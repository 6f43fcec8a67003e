"""A failed lookup of a key is one of a column of the data only where its frames show that."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import diagnose_logs
from agent.diagnosis.searched_log import Log

LOOKUP = """Traceback (most recent call last):
  File "/w/examples/grpo/main.py", line 3, in <module>
    main()
  File "{file}", line 30, in {function}
    {code}
KeyError: 'prompt_key'
"""

SITE = "/opt/conda/lib/python3/site-packages"


@pytest.mark.parametrize(
    ("file", "function", "code", "key"),
    [
        ("/w/verl/utils/dataset/rl_dataset.py", "_read", "x = rows[key]", "data column"),
        ("/w/train.py", "preprocess_data", "x = it[key]", "data column"),
        ("/w/train_data.py", "<lambda>", "x = example['prompt_key']", "data column"),
        ("/opt/conda/lib/python3/site-packages/datasets/table.py", "get", "f(key)", "data column"),
        ("/w/verl/workers/actor.py", "update_policy", "x = batch['prompt_key']", ""),
        ("/w/verl/utils/tracking.py", "__init__", "self.logger[name]", ""),
    ],
)
def test_the_innermost_frames_decide(file: str, function: str, code: str, key: str) -> None:
    """A folder of examples or a batch between workers is no data set."""
    text = LOOKUP.format(file=file, function=function, code=code)
    answer = diagnose_logs([Log("", "job.log", f"reading the dataset\n{text}")])
    assert answer.key == key
    assert ("prompt_key" in answer.cause) == bool(key)


@pytest.mark.parametrize(
    ("file", "function", "code", "cause"),
    [
        (
            f"{SITE}/datasets/formatting/formatting.py",
            "__getitem__",
            "value = self.data[key]",
            "the data set lacks a column",
        ),
        (
            "/w/data/rl_dataset.py",
            "_read",
            "x = example['prompt_key']",
            "the data set lacks a column",
        ),
        (
            f"{SITE}/datasets/dataset_dict.py",
            "__getitem__",
            "return super().__getitem__(k)",
            "the data set has no split prompt_key",
        ),
        (
            "/w/rewards/judge.py",
            "score",
            "total = item['prompt_key']",
            "a row of the data, or another dictionary",
        ),
        (
            "/w/prepare.py",
            "preprocess",
            "return {'labels': LABELS[example['x']]}",
            "a row of the data, or another dictionary",
        ),
    ],
)
def test_what_is_looked_up_is_named_as_far_as_it_shows(
    file: str, function: str, code: str, cause: str
) -> None:
    """A split is no column, and the answer of a judge no row of the data."""
    text = LOOKUP.format(file=file, function=function, code=code)
    assert diagnose_logs([Log("", "job.log", text)]).cause.startswith(cause)
