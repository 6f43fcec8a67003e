"""What ships to be run: reward server, rehearsal, verl's reward function; each stands alone."""
