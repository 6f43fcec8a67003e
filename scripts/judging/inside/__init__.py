"""Programs for the environments of the frameworks: they import nothing of the agent."""
