"""The head's decisions as pure functions; start reading at head_decide.py.

Nothing is imported here: workers load the state of the head for its messages, not its decisions.
"""
