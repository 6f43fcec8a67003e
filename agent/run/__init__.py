"""Run the head or a worker: perform the actions of the decisions, and feed events back."""
