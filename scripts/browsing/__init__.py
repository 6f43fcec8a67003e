"""The page in a real browser: what it shows, that it complains of nothing, and how it looks."""
