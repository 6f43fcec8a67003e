"""The bridge to Ray: a process of its own imports Ray, so that the agent never does.

Ray's client code ends its whole process when GCS stays away for a minute; in a process of its
own that is an event like any other, its blocking calls hold nobody up, and the agent stays small.
"""
