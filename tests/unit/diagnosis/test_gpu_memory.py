"""A GPU without memory: torch states who holds it, and how much is asked."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import diagnose_logs
from agent.diagnosis.searched_log import Log

FRAMES = 'Traceback (most recent call last):\n  File "/w/train.py", line 3, in step\n    f()\n'
HEAD = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
TOTAL = "GPU 0 has a total capacity of 79.11 GiB of which 1.00 GiB is free."
OWN = "Including non-PyTorch memory, this process has"


@pytest.mark.parametrize(
    ("line", "cause", "remedy"),
    [
        (
            (
                f"{HEAD} 2.00 GiB. {TOTAL} Process 7 has 40.00 GiB memory in use. Process 8 has "
                f"512.00 MiB memory in use. {OWN} 30.00 GiB memory in use."
            ),
            "a GPU ran out of memory: other processes held 40 of its 79 GiB",
            "nvidia-smi",
        ),
        (
            f"{HEAD} 120.00 GiB. {TOTAL} {OWN} 30.00 GiB memory in use.",
            "a GPU ran out of memory: one tensor of 120 GiB is larger than its 79 GiB",
            "make it in parts",
        ),
        (
            (
                f"{HEAD} 2.00 GiB. {TOTAL} Process 7 has 8.00 GiB memory in use. {OWN} 70.00 GiB "
                "memory in use."
            ),
            "a GPU ran out of memory",
            "micro batch",
        ),
        (
            f"{HEAD} 30.00 GiB (GPU 0; 15.78 GiB total capacity; 9.10 GiB already allocated)",
            "a GPU ran out of memory: one tensor of 30 GiB is larger than its 16 GiB",
            "make it in parts",
        ),
        (
            # In a container, the process itself may have another number.
            f"{HEAD} 2.00 GiB. {TOTAL} Process 7 has 78.00 GiB memory in use.",
            "a GPU ran out of memory",
            "micro batch",
        ),
    ],
)
def test_the_holder_of_the_memory_decides(line: str, cause: str, remedy: str) -> None:
    """A smaller micro batch does not help where others hold most of it."""
    answer = diagnose_logs([Log("", "job.log", FRAMES + line)])
    assert answer.key == "GPU memory"
    assert answer.cause == cause
    assert remedy in answer.what_to_do


def test_an_engine_s_share_is_not_to_blame_for_one_large_tensor() -> None:
    """A smaller share of an engine would leave it no more room for such a tensor."""
    frame = '  File "/x/vllm/v1/worker/gpu_model_runner.py", line 3, in execute_model\n    f()\n'
    line = f"{HEAD} 120.00 GiB. {TOTAL} {OWN} 30.00 GiB memory in use."
    answer = diagnose_logs([Log("", "job.log", FRAMES + frame + line)])
    assert answer.key == "GPU memory of the engine"
    assert "one tensor of 120 GiB" in answer.cause
    assert "gpu_memory_utilization" not in answer.what_to_do


@pytest.mark.parametrize(
    ("line", "cause", "remedy"),
    [
        (
            (
                f"{HEAD} 2.00 GiB. {TOTAL} {OWN} 78.00 GiB memory in use. Of the allocated memory "
                "70.00 GiB is allocated by PyTorch, and 7.50 GiB is reserved by PyTorch but "
                "unallocated."
            ),
            "for one piece of 2.0 GiB: torch holds 7.5 GiB unused, in smaller pieces",
            "expandable_segments:True",
        ),
        (
            (
                f"{HEAD} 2.00 GiB. {TOTAL} {OWN} 78.00 GiB memory in use. Of the allocated memory "
                "77.00 GiB is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch but "
                "unallocated."
            ),
            "a GPU ran out of memory",
            "Take a smaller micro batch",
        ),
        (
            f"{HEAD} 512.00 MiB. {TOTAL}",
            "a GPU gave no memory: 0.5 GiB were asked for, though 1.0 GiB are free",
            "at that moment, or a limit",
        ),
        (
            f"{HEAD} 512.00 MiB. {TOTAL} {OWN} 20.00 GiB memory in use. 20.00 GiB allowed; Of the",
            "the share of a GPU's memory that it may take (20.0 GiB)",
            "Raise that limit",
        ),
        (
            "[torch_memory_saver.cpp] CUresult error  result=2 file=a.cpp func=cu_mem_create",
            "a GPU ran out of memory",
            "micro batch",
        ),
    ],
)
def test_a_gpu_with_free_memory_is_not_called_full(line: str, cause: str, remedy: str) -> None:
    """A limit of the process, or pieces, have another remedy."""
    answer = diagnose_logs([Log("", "job.log", FRAMES + line)])
    assert answer.key == "GPU memory"
    assert answer.cause.endswith(cause)
    assert remedy in answer.what_to_do
    assert "…" not in answer.remedy().partition(" It shows in")[0]
