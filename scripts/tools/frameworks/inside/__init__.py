"""Programs for the frameworks' environments; they do not import the agent."""
