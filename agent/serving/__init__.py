"""The base of every HTTP server here: connections and bodies with limits and deadlines."""
