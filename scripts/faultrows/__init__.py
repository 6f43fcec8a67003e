"""Faults: which scenarios prove what follows from each kind of failure, and their results."""
