"""scripts/gpu: arithmetic that is compared, dumps that run no code, states of a GPU."""

from __future__ import annotations

import pickle

import pytest

from agent.frameworks.layouts import FSDP_RESIDENT
from agent.frameworks.recipe import ModelShape, NodeSize
from agent.frameworks.sizing import Workload, sizing_of
from tools.gpu import memory, recorder


@pytest.mark.parametrize("size", memory.SIZES, ids=lambda size: size.name)
def test_the_compared_arithmetic_is_that_of_the_sizing(size: memory.Size) -> None:
    """The figure without tokens, and that of a token, are those of the sizing's own sentence."""
    shape = ModelShape.from_config(size.config())
    assert shape is not None
    node = NodeSize(1, 16, gpu_memory=80)
    load = Workload((FSDP_RESIDENT,), tokens=size.tokens, nodes=(node,), model=shape)
    without = memory.predicted(shape, FSDP_RESIDENT, 0) / 1e9
    token = (memory.predicted(shape, FSDP_RESIDENT, 1) / 1e9 - without) * 1e3
    assert sizing_of(load).why["tokens"] == f"80 GB - {without:.1f} GB, at {token:.1f} MB a token"


def test_a_dump_runs_no_code() -> None:
    """Plain data is read; a name, which a pickle would call, is refused."""
    entry = {"profiling_name": "nccl:all_reduce", "state": "scheduled", "frames": []}
    found = recorder.about(recorder.load(pickle.dumps({"version": "2.10", "entries": [entry]})))
    assert (found["entries"], found["states"]) == (1, {"scheduled": 1})
    assert found["last"]["profiling_name"] == "nccl:all_reduce"
    with pytest.raises(recorder.DumpError, match=r"names .*\.system"):
        recorder.load(b"cos\nsystem\n(S'true'\ntR.")
