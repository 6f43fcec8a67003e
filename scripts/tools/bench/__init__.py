"""The benchmark: the agent, handmade scripts and Ray's own symmetric-run, in comparison."""
