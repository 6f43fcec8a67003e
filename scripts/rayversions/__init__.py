"""Which Rays and Pythons the agent works with, found by running the lab's scenarios with each."""
