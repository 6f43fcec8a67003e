"""Builds `dist/pod-agent`, one file that runs wherever there is a Python, and its lock."""
