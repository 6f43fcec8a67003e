"""Wait for the agent's file, which pods.py sends to this pod: PORT SIZE DIGEST TARGET.

The port is open to everybody by RunPod's proxy. So nothing is taken but a file of this size and
SHA-256. It may also appear by itself, on a disk that pods share.
"""

import hashlib
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT, SIZE = map(int, sys.argv[1:3])
DIGEST = sys.argv[3]
TARGET = Path(sys.argv[4])


class Receiver(BaseHTTPRequestHandler):
    """Takes one file."""

    timeout = 60  # seconds without a byte

    def do_PUT(self) -> None:
        """Answer 201 to the file, 403 to anything else."""
        is_as_long = self.headers.get("Content-Length") == str(SIZE)
        content = self.rfile.read(SIZE) if is_as_long else b""
        is_right = hashlib.sha256(content).hexdigest() == DIGEST
        new = TARGET.with_name(f"{os.uname().nodename}.{threading.get_ident()}")
        if is_right:
            new.write_bytes(content)
        self.send_response(201 if is_right else 403)
        self.send_header("Content-Length", "0")
        self.end_headers()
        if is_right:  # after the answer, since this program ends with it
            new.replace(TARGET)


TARGET.parent.mkdir(parents=True, exist_ok=True)
server = ThreadingHTTPServer(("0.0.0.0", PORT), Receiver)  # noqa: S104 - the proxy comes in by eth0
server.timeout = 2
print("waiting for the agent, which pods.py sends", flush=True)
while not TARGET.exists():
    server.handle_request()
