"""The bridge: a separate process that calls Ray, so that the agent does not.

It runs in Ray's Python. Calls of Ray's client block, and it exits its process when GCS does not
answer for a minute. In a separate process the first stalls nothing, the second is an event, and the
agent stays small. Until the job starts, most runs need none of Ray's client (light_calls.py).
"""
