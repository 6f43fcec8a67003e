"""The benchmark: the agent, a handmade optimum and Ray's own symmetric-run, side by side."""
