"""What of vLLM's helpers OpenRLHF imports."""

import uuid


def random_uuid() -> str:
    """Return a name for a request."""
    return uuid.uuid4().hex
