"""pod-agent: one entrypoint that turns N rented pods into one running RL training job."""

__version__ = "0.1.0"
