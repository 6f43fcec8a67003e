"""Every platform and role: a captured environment leads to its golden plan."""

from __future__ import annotations

import pytest

from support.captured import FOLDER, NAMES, read, text_of
from support.golden import assert_golden


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str) -> None:
    """The plan reads as it did; POD_AGENT_UPDATE_GOLDEN=1 rewrites what it is compared with."""
    text = text_of(*read(name))
    file = FOLDER / f"{name}.plan.txt"
    assert_golden(file, text)


def test_every_golden_has_its_environment() -> None:
    """No file is left over from an environment that is gone."""
    assert {file.name.removesuffix(".plan.txt") for file in FOLDER.glob("*.txt")} == set(NAMES)
