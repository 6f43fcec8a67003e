"""The OpenAPI description of the agent's port."""
