"""Chaos: random mishaps over three pods, from a seed, and what may come of them."""
