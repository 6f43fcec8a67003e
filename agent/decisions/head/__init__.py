"""The head's decisions: (state, event, time) -> state and actions."""

from agent.decisions.head.after import first_actions
from agent.decisions.head.story import deadline, decide, first_state
from agent.decisions.head.waits import waits

__all__ = ["deadline", "decide", "first_actions", "first_state", "waits"]
