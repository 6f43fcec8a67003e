"""The rows of faults: for each kind, the scenarios that prove the result."""
