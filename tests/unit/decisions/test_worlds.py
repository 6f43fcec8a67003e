"""Random worlds: real decisions, reports and records of all nodes under random faults.

One world by its seed, with its history where a rule is broken:
`POD_AGENT_WORLDS=42 .venv/bin/pytest tests/unit/decisions/test_worlds.py`; many:
`POD_AGENT_WORLDS=0-5000`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from support.simulated.playing import broken_rules, on_platforms
from support.simulated.setups import RAY, Setup, harmless_setup_of, setup_of, setup_of_group

if TYPE_CHECKING:
    from collections.abc import Iterable

_FIRST, _, _LAST = os.environ.get("POD_AGENT_WORLDS", "0-11").partition("-")
SEEDS = range(int(_FIRST), int(_LAST or _FIRST) + 1)
AT_ONCE = 25


@pytest.mark.parametrize("first", SEEDS[::AT_ONCE])
def test_a_sample_of_worlds(first: int) -> None:
    """No rule is broken in some worlds; `./scripts/test --all` plays 2,000."""
    found = broken_rules(range(first, min(first + AT_ONCE, SEEDS.stop)))
    if found:
        pytest.fail(found, pytrace=False)


@pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 20), marks=pytest.mark.slow)], ids=str
)
def test_no_pod_bills_on(seeds: range) -> None:
    """Whatever a platform starts again, no pod loops or outlives its run by a minute."""
    found = broken_rules(seeds, on_platforms)
    if found:
        pytest.fail(found, pytrace=False)


KEPT = (30, 73, 441, 485, 714, 1256, 2024)
"""Worlds that once broke a rule, beyond the sample above: by the product, or by the rule itself."""


def test_worlds_that_broke_a_rule() -> None:
    """Heads and workers without a record, and clusters without a job, whose agents are killed."""
    found = broken_rules(KEPT)
    if found:
        pytest.fail(found, pytrace=False)


GROUPS_KEPT = (9, 30, 35, 39, 48, 59)
"""Worlds with a group that once broke a rule: by the product."""


GROUPS_SLOW = [
    pytest.param(range(first, first + AT_ONCE), marks=pytest.mark.slow)
    for first in range(3, 150, AT_ONCE)
]


@pytest.mark.parametrize("seeds", [GROUPS_KEPT, range(3), *GROUPS_SLOW], ids=str)
def test_groups_beside_the_trainer(seeds: Iterable[int]) -> None:
    """Their members serve with current weights, and a loss of them costs what the file says."""
    found = broken_rules(seeds, setup_of_group)
    if found:
        pytest.fail(found, pytrace=False)


@pytest.mark.parametrize(
    "seeds", [(0, 1, 2, 3, 116), pytest.param(range(4, 15), marks=pytest.mark.slow)], ids=str
)
def test_harmless_faults_cost_nothing(seeds: Iterable[int]) -> None:
    """One attempt and the job's own code, whatever of it happens (docs/faults.md)."""
    found = broken_rules(seeds, harmless_setup_of)
    if found:
        pytest.fail(found, pytrace=False)


def head_loses_its_disk(seed: int) -> Setup:
    """Return a world whose head comes back without a record while workers prepare their disk."""
    setup = setup_of(seed)
    assert setup.kind == RAY
    return replace(
        setup,
        workers=max(2, setup.workers),
        shared_data=True,
        head_is_apart=True,
        step_seconds=30.0,
        faults=((8.0, "head_loses_its_disk", 0), (20.0, "head_loses_its_disk", 0)),
    )


@pytest.mark.parametrize(
    "seeds", [(3, 66), pytest.param((84, 91, 118, 121), marks=pytest.mark.slow)], ids=str
)
def test_a_step_runs_once_though_the_head_loses_its_disk(seeds: Iterable[int]) -> None:
    """Workers report which of them runs it."""
    found = broken_rules(seeds, head_loses_its_disk)
    if found:
        pytest.fail(found, pytrace=False)
