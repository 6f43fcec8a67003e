"""The limit of open files, which the usual containers set too low."""

from __future__ import annotations

import resource

WANTED_FILES = 65_536
"""Ray aborts with 'Too many open files' on the usual 1024; an HTTP server here uses half of its
limit for connections.
"""


def raise_open_files() -> None:
    """Raise the limit as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
