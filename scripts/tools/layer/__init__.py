"""The layer that the Dockerfile puts over a framework's image."""
