"""Stand-ins, like the package around them."""
