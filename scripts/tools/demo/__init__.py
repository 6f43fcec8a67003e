"""The demo of groups, in the lab."""
