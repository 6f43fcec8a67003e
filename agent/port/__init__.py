"""The agent's port: reports between nodes, and status, page and metrics for users."""
