"""Measure how well the agent names the causes of failed runs."""
