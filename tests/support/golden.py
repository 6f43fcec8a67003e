"""Golden files: what a test makes equals a file, which one switch writes anew."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SWITCH = "POD_AGENT_UPDATE_GOLDEN"


def assert_golden(file: Path, text: str) -> None:
    """Compare a text with a golden file, or write it there if the switch is set."""
    if os.environ.get(SWITCH) == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    test = os.environ.get("PYTEST_CURRENT_TEST", "tests/unit").partition("::")[0]
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    assert text == before, f"{file.name} differs; {SWITCH}=1 .venv/bin/pytest {test} writes it anew"
