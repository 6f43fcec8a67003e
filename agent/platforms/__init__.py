"""The role of this node and the address of the head, from platform and settings."""
