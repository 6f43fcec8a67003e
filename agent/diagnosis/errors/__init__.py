"""Errors in logs, by their structure: prefixes, tracebacks and messages of many programs."""
