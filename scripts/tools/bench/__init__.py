"""The benchmark: start and recovery, beside handmade scripts and Ray's own symmetric-run."""
