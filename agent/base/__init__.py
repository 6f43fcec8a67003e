"""Words that every room shares: how a run ends, what is wrong, ports, addresses."""
