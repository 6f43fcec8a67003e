"""Chaos: random faults over three pods, from a seed, and the permitted results."""
