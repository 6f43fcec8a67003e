"""Decisions of head and worker: pure functions from state, event and time to actions."""
