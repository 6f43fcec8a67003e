"""Random worlds: real decisions, reports and records of all nodes under random faults.

One world by its seed, with its history where a rule is broken:
`POD_AGENT_WORLDS=42 .venv/bin/pytest tests/unit/decisions/test_worlds.py`; many:
`POD_AGENT_WORLDS=0-5000`.
"""

from __future__ import annotations

import os

import pytest

from support.simulated.playing import broken_rules, on_platforms

_FIRST, _, _LAST = os.environ.get("POD_AGENT_WORLDS", "0-49").partition("-")
SEEDS = range(int(_FIRST), int(_LAST or _FIRST) + 1)
AT_ONCE = 25


@pytest.mark.parametrize("first", SEEDS[::AT_ONCE])
def test_a_sample_of_worlds(first: int) -> None:
    """No rule is broken in some worlds; `./scripts/test --all` looks at 2,000."""
    found = broken_rules(range(first, min(first + AT_ONCE, SEEDS.stop)))
    if found:
        pytest.fail(found, pytrace=False)


def test_no_pod_bills_on() -> None:
    """Whatever a platform starts again, no pod loops or outlives its run by a minute."""
    found = broken_rules(range(20), on_platforms)
    if found:
        pytest.fail(found, pytrace=False)
