"""The worker's decisions: (state, event, time) -> state and actions."""

from agent.decisions.worker.story import deadline, decide, start, waits

__all__ = ["deadline", "decide", "start", "waits"]
