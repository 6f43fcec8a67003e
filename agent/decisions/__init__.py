"""What to do next, on the head and on a worker: pure functions from state, event and time."""
