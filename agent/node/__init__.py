"""This machine: facts as values, and, in files of their own, how they are read."""
