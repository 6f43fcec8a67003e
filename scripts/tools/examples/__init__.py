"""The start files in `examples/`, written by `pod-agent init`."""
