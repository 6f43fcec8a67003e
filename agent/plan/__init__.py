"""The plan: everything that `run` will do, as data, and how it is made and shown."""
