"""A worker script as written by hand: argv is the head's IP and its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

RAY = str(Path(sys.executable).parent / "ray")
STEP = 0.05


def main(head: str, own: str) -> None:
    """Wait for the head's port and join, with a retry if the first try comes too early."""
    while True:
        try:
            socket.create_connection((head, 6379), 1).close()
        except OSError:
            time.sleep(STEP)
            continue
        join = [RAY, "start", f"--address={head}:6379", f"--node-ip-address={own}", "--block"]
        subprocess.run(join, check=False, stdout=subprocess.DEVNULL)
        time.sleep(STEP)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
