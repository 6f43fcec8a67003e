"""Every platform and role: a captured environment leads to its golden plan."""

from __future__ import annotations

import pytest

from agent.base.errors import SettingsError
from support.captured import FOLDER, NAMES, plan_of, read, text_of
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


@pytest.mark.parametrize("name", NAMES)
def test_the_role_is_the_files(name: str) -> None:
    """A file's name ends with its role: head, worker, alone or refused."""
    wanted = name.rpartition("-")[2]
    if wanted == "refused":
        with pytest.raises(SettingsError):
            plan_of(*read(name))
        return
    topology = plan_of(*read(name)).topology
    alone = topology.is_head and topology.expected_workers == 0
    roles = {topology.role, "alone" if alone else "", "single" if alone else ""}
    assert topology.is_idle == (topology.platform.name == "kuberay" and wanted == "worker")
    assert wanted in roles
    assert topology.evidence
