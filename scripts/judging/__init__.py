"""Every recipe judged by the frameworks' own parsers, and some of them run for real."""
