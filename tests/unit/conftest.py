"""How properties are searched: no clock, since the machine may be busy; no folder is left."""

from __future__ import annotations

import os

from hypothesis import settings

EXAMPLES = int(os.environ.get("POD_AGENT_EXAMPLES", "60"))
"""A longer search by hand: POD_AGENT_EXAMPLES=5000 pytest tests/unit -k properties."""

settings.register_profile("unit", deadline=None, database=None, max_examples=EXAMPLES)
settings.load_profile("unit")
