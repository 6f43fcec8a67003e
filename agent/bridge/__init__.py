"""The bridge: a separate process that imports Ray, so that the agent does not.

Ray's client exits its process when GCS does not answer for a minute, and its calls block. In a
separate process the first is an event, the second stalls nothing, and the agent stays small.
"""
