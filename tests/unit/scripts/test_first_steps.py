"""The scripts that the first page names can be read by the bash of a Mac."""

from __future__ import annotations

import re
import subprocess

import pytest

from support.sources import ROOT

FIRST_STEPS = ("setup", "demo", "build")
OF_BASH_4 = re.compile(
    r"\b(?:mapfile|readarray|coproc)\b|;;?&(?!\w)|&>>|\|&|\bwait -n\b|\[-\d+\]\}"
    r"|\b(?:declare|local|typeset) -\w*[Anlu]|\$\{!?\w+(?:\[[^]]*\])?(?:@[A-Za-z]|\^|,)"
)
"""Words and operators that came with bash 4 or later; a Mac has 3.2."""


@pytest.mark.parametrize("name", FIRST_STEPS)
def test_bash_3_can_read_it(name: str) -> None:
    """No operator of bash 4 is in it; bash itself accepts its syntax."""
    script = ROOT / "scripts" / name
    lines = [line for line in script.read_text().splitlines() if not line.lstrip().startswith("#")]
    assert [line for line in lines if OF_BASH_4.search(line)] == []
    subprocess.run(["bash", "-n", script], check=True)
