"""Faults: which scenarios show what follows from each kind of death, and what was seen of them."""
