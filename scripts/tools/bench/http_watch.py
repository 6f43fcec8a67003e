"""Report when a URL starts and stops answering as expected: argv is URL, text, body.

Runs in a pod; prints a line for each change: 1 or 0, and time.monotonic(), which all pods share.
"""

from __future__ import annotations

import sys
import time
import urllib.request

STEP, LONGEST = 0.02, 0.5


def main(url: str, wanted: str, body: str | None = None) -> None:
    """Poll without end."""
    before = None
    while True:
        now = answers(url, wanted, body)
        if now != before:
            print(int(now), time.monotonic(), flush=True)
        before = now
        time.sleep(STEP)


def answers(url: str, wanted: str, body: str | None) -> bool:
    """Send one request."""
    data = None if body is None else body.encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 - the URL is ours
    try:
        with urllib.request.urlopen(request, timeout=LONGEST) as reply:  # noqa: S310 - same
            return wanted in reply.read().decode()
    except OSError:
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
