"""Programs that need torch; each runs in a process of its own."""
