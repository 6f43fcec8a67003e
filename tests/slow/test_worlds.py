"""2,000 random simulated clusters; the unit tests include a smaller sample."""

from __future__ import annotations

import pytest

from support.simulated.playing import broken_rules, on_platforms
from support.simulated.setups import harmless_setup_of

WORLDS, ON_PLATFORMS, HARMLESS, AT_ONCE = 2000, 200, 400, 50


@pytest.mark.parametrize("first", range(0, WORLDS, AT_ONCE))
def test_worlds(first: int) -> None:
    """No rule is broken in any of them."""
    found = broken_rules(range(first, first + AT_ONCE))
    if found:
        pytest.fail(found, pytrace=False)


@pytest.mark.parametrize("first", range(0, ON_PLATFORMS, AT_ONCE))
def test_no_pod_bills_on(first: int) -> None:
    """No pod loops, or runs a minute after its run's end, whatever its platform starts again."""
    found = broken_rules(range(first, first + AT_ONCE), on_platforms)
    if found:
        pytest.fail(found, pytrace=False)


@pytest.mark.parametrize("first", range(0, HARMLESS, AT_ONCE))
def test_harmless_faults_cost_nothing(first: int) -> None:
    """One attempt and the job's own code, whatever of it happens (docs/faults.md)."""
    found = broken_rules(range(first, first + AT_ONCE), harmless_setup_of)
    if found:
        pytest.fail(found, pytrace=False)
