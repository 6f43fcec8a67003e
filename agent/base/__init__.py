"""Shared by all layers: every end and every time of a run, errors, ports, text helpers."""
