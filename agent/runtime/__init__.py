"""How the agent acts on its machine: processes and their output, signals, waiting, DNS, probes."""
