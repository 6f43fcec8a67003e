"""Check every recipe with the frameworks' own parsers, and run some of them."""
