"""Programs that ship with the agent; each runs without the rest of it."""
