"""The front: stable addresses for the members of a service whose weights a trainer updates."""
