"""RunPod's API: the requests by which a pod stops itself, and what their answers mean."""
