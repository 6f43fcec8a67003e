"""The part of vLLM's helpers that OpenRLHF imports."""

import uuid


def random_uuid() -> str:
    """Return a name for a request."""
    return uuid.uuid4().hex
