"""Stands in for torch, which is a gigabyte: only the part that starts processes."""
