"""Shared by all layers: outcomes, errors with remedies, ports, text helpers."""
