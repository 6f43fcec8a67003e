"""The two stories, head and worker: they turn actions into effects and effects into events."""
