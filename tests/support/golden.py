"""Golden files: what a test makes equals a file, which one switch writes anew."""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import TYPE_CHECKING

from agent.base.text import own_command
from agent.plan.show import render
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.plan.plan import Plan

SWITCH = "POD_AGENT_UPDATE_GOLDEN"
_PASSED = re.compile(r"^  ok   .*\n", re.MULTILINE)


def assert_golden(file: Path, text: str) -> None:
    """Compare a text with a golden file, or write it there if the switch is set."""
    if os.environ.get(SWITCH) == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    test = os.environ.get("PYTEST_CURRENT_TEST", "tests/unit").partition("::")[0]
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    assert text == before, f"{file.name} differs; {SWITCH}=1 .venv/bin/pytest {test} writes it anew"


def golden_text(plan: Plan, environ: Mapping[str, str]) -> str:
    """Return a rendered plan, without this machine's paths to Python and Ray.

    Checks that passed are left out: test_checks.py has a row for each, and a further check would
    change every file.
    """
    text = render(plan, redactor_for(environ, plan.settings)) + "\n"
    for path, name in ((own_command(sys.executable)[1], "AGENT"), (sys.executable, "PYTHON")):
        text = text.replace(shlex.quote(path), name)
    return _PASSED.sub("", text.replace("ray:    ray start", "ray:    RAY start"))
