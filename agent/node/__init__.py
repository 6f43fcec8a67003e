"""This machine: facts as values, and, in separate files, how they are read."""
