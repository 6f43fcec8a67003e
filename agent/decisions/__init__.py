"""Following, recovering and ending as pure functions from state, event and time."""
