"""What an agent writes: the log, the run folder with its records, and failure bundles."""
