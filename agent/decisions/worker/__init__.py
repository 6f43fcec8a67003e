"""The worker's decisions: (state, event, time) -> state and actions."""

from agent.decisions.worker.after import first_words
from agent.decisions.worker.story import deadline, decide, first_state, waits, words

__all__ = ["deadline", "decide", "first_state", "first_words", "waits", "words"]
