"""The head's decisions: (state, event, time) -> state and actions."""

from agent.decisions.head.story import deadline, decide, start
from agent.decisions.head.waits import waits

__all__ = ["deadline", "decide", "start", "waits"]
