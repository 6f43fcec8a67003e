"""The head's decisions as pure functions; start reading at decide.py."""

from agent.decisions.head.decide import deadline, decide, first_state
from agent.decisions.head.waits import pending_waits

__all__ = ["deadline", "decide", "first_state", "pending_waits"]
