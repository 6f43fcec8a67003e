"""What `run` does on a head and on a worker: decisions become effects, effects become events."""
