"""The command line: its verbs, one module for each or for a small group."""
