"""Weights that an engine refuses: only where a trainer sends them."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import Diagnosis, diagnose_logs
from agent.diagnosis.searched_log import Log

LOAD = """Traceback (most recent call last):
  File "/x/sglang/srt/model_runner.py", line 3, in {sends}
    self.model.load_weights(tensors)
  File "/x/sglang/srt/layers/linear.py", line 30, in {loads}
    assert param.size() == loaded.size()
{line}
"""


def found(sends: str, loads: str, line: str) -> Diagnosis:
    """Return the diagnosis of an engine that failed while it loads a weight."""
    text = LOAD.format(sends=sends, loads=loads, line=line)
    return diagnose_logs([Log("", "job.log", text)])


@pytest.mark.parametrize(
    ("sends", "loads", "line", "why"),
    [
        (
            "update_weights_from_tensor",
            "weight_loader",
            "AssertionError",
            "param.size() == loaded.size()",
        ),
        (
            "sync_policy_weights",
            "load_weights",
            "RuntimeError: start (256) exceeds dimension size (256).",
            "RuntimeError: start (256) exceeds dimension size (256)",
        ),
        ("load_model", "weight_loader", "AssertionError", ""),
        ("update_weights_from_tensor", "forward", "RuntimeError: shapes differ", ""),
    ],
)
def test_a_refused_weight(sends: str, loads: str, line: str, why: str) -> None:
    """The frames show that it was sent; at the start of an engine it is the model's file."""
    answer = found(sends, loads, line)
    assert (answer.key == "weight refused") is bool(why)
    assert not why or answer.cause == (
        f"the engine cannot load a weight that the trainer sends ({why})"
    )
