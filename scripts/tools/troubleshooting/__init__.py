"""Generate docs/troubleshooting.md from the agent's own tables."""
