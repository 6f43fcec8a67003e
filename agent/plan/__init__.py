"""The plan: all that `run` will do, as data, how it is made and how it is printed."""
