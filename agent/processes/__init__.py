"""Processes, signals, the job's output, probes and waiting."""
