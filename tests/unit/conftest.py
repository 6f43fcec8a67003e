"""Settings of the unit tests: default signals, properties without deadlines or databases."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from support.ignored_signals import keep_ignored_signals_from_children

EXAMPLES = int(os.environ.get("POD_AGENT_EXAMPLES", "20"))
"""./scripts/test --all has 90; by hand: POD_AGENT_EXAMPLES=5000 pytest tests/unit -k properties"""

settings.register_profile("unit", deadline=None, database=None, max_examples=EXAMPLES)
settings.load_profile("unit")
keep_ignored_signals_from_children()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run tests with the mark `anyio` as the agent runs: on asyncio, each in a loop of its own."""
    return "asyncio"
