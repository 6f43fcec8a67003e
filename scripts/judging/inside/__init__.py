"""What runs in the suite's own environments, beside a framework's package: nothing of the agent."""
