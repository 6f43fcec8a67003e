"""The agent on one NVIDIA GPU: what travels there, and the parts that are tried."""
