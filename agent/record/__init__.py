"""What is kept and told of a run: the log, the run folder, events and waits."""
