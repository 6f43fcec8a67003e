"""The agent's own port: what nodes tell each other, and what a person can look at."""
