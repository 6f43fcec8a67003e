"""Stand-ins, as the package around them."""
