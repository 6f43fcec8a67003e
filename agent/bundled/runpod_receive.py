"""Wait for the files that pods.py sends to this pod: PORT, and SIZE DIGEST TARGET of each.

The port is open to everybody by RunPod's proxy. So nothing is taken but files of these sizes and
SHA-256s. A file may also appear by itself, on a disk that pods share.
"""

import hashlib
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT = int(sys.argv[1])
WORDS = sys.argv[2:]
STARTS = range(0, len(WORDS), 3)
SIZES = {int(WORDS[at]) for at in STARTS}
TARGETS = {WORDS[at + 1]: Path(WORDS[at + 2]) for at in STARTS}  # by the digest


class Receiver(BaseHTTPRequestHandler):
    """Takes the files."""

    timeout = 60  # seconds without a byte

    def do_PUT(self) -> None:
        """Answer 201 to a file that is awaited, 403 to anything else."""
        length = self.headers.get("Content-Length") or ""
        is_as_long = length.isdigit() and int(length) in SIZES
        content = self.rfile.read(int(length)) if is_as_long else b""
        target = TARGETS.get(hashlib.sha256(content).hexdigest())
        if target is not None:
            new = target.with_name(f"{os.uname().nodename}.{threading.get_ident()}")
            new.write_bytes(content)
        self.send_response(403 if target is None else 201)
        self.send_header("Content-Length", "0")
        self.end_headers()
        if target is not None:  # after the answer, since this program ends with the last file
            new.replace(target)


for target in TARGETS.values():
    target.parent.mkdir(parents=True, exist_ok=True)
server = ThreadingHTTPServer(("0.0.0.0", PORT), Receiver)  # noqa: S104 - the proxy comes in by eth0
server.timeout = 2
print("waiting for the agent's files, which pods.py sends", flush=True)
while not all(target.exists() for target in TARGETS.values()):
    server.handle_request()
