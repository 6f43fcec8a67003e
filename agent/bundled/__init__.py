"""What ships to be run: the reward server and the rehearsal, programs that stand on their own."""
