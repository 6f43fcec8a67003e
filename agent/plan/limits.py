"""Fixed limits of both stories, which the plan shows."""

SUBMIT_LIMIT = 120.0
SILENCE_LIMIT = 120.0
JOIN_LIMIT = 120.0
