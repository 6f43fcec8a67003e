"""The use of GPUs, parsed from the output of nvidia-smi, rocm-smi and amd-smi."""

from __future__ import annotations

import pytest

from agent.node.gpus import TOOLS, GpuUtilization, busy_gpu, read_amd, read_nvidia, read_rocm

ROCM = """\
WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

{"card0": {"GPU use (%)": "0", "GFX Activity": "1203746"}, "card1": {"GPU use (%)": "98", \
"GFX Activity": "N/A"}, "card2": {"GFX Activity": "N/A"}, "system": {"Driver version": "6.7.0"}}
"""
AMD = """\
[
    {
        "gpu": 0,
        "usage": {
            "gfx_activity": {"value": 0, "unit": "%"},
            "umc_activity": {"value": 0, "unit": "%"},
            "mm_activity": "N/A",
            "vcn_activity": [{"value": 0, "unit": "%"}, "N/A"]
        }
    },
    {"gpu": 1, "usage": {"gfx_activity": "N/A", "umc_activity": "N/A"}},
    {"gpu": 2, "usage": "N/A"},
    {"gpu": 3, "usage": {"gfx_activity": {"value": 41, "unit": "%"}}}
]
"""


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("0, 0\n1, 87\n", {0: 0, 1: 87}),
        ("0, [N/A]\n1, 4\n", {1: 4}),
        ("no devices were found\n", {}),
        ("", {}),
    ],
)
def test_nvidias_list(text: str, uses: GpuUtilization) -> None:
    """A GPU without a value, for example one divided into MIG instances, is left out."""
    assert read_nvidia(text) == uses


def test_amds_two_tools() -> None:
    """Warnings before the JSON are skipped; amd-smi has two forms of its list."""
    assert read_rocm(ROCM) == {0: 0, 1: 98}
    assert read_amd(AMD) == read_amd(f'{{"gpu_data": {AMD}}}') == {0: 0, 3: 41}
    assert read_amd('{"gpu_data": "N/A"}') == read_rocm("[]") == {}


@pytest.mark.parametrize("text", ["", "ERROR: no AMD GPUs found", "{", "[1, 2"])
def test_a_value_that_is_no_list_is_named(text: str) -> None:
    """A ValueError is raised."""
    for tool in TOOLS["amd"]:
        with pytest.raises(ValueError, match=r"no JSON|Expecting"):
            tool.read(text)


def test_a_gpu_that_works_is_named() -> None:
    """A few percent are normal for an idle one."""
    assert busy_gpu({0: 0, 1: 4}) == busy_gpu({}) == ""
    assert busy_gpu({0: 4, 3: 41}) == "GPU 3 at 41 %"
