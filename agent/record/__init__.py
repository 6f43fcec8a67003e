"""What is told of a run and kept of it: the log, the run folder, events, what is waited for."""
