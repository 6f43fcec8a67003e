"""Compile caches on disk: archives of them on a volume, read and written by a program."""
