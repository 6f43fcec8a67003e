"""Stands in for torch, a gigabyte that is not ours: of it all, only what starts processes."""
