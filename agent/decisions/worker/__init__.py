"""The worker's decisions as pure functions; start reading at decide.py."""

from agent.decisions.worker.worker_decide import deadline, decide, first_state, pending_waits
from agent.decisions.worker.worker_state import item_reports, wanted_here

__all__ = ["deadline", "decide", "first_state", "item_reports", "pending_waits", "wanted_here"]
