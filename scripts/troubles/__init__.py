"""Writes docs/troubleshooting.md from what the agent itself knows."""
