"""The files that start a run on each platform, as `pod-agent init` writes them."""
