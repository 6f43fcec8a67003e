"""The head's decisions as pure functions; start reading at decide.py."""

from agent.decisions.head.boot_waits import pending_waits
from agent.decisions.head.head_decide import deadline, decide, first_state

__all__ = ["deadline", "decide", "first_state", "pending_waits"]
