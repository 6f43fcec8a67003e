"""Effects, thin: processes, signals, waiting, names, files."""
