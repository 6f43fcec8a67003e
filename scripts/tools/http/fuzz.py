"""Send every path of a head's port what its description allows and forbids, by schemathesis."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from msgspec.json import schema_components
from msgspec.structs import asdict

from agent import __version__
from agent.checks.finding import Finding, Level
from agent.job.series import Series, SeriesPart
from agent.port.node_network import bind
from agent.port.protocol import REPORT_PATH, VERSION, Reply, Report
from agent.port.reports import Expected, Reports, agent_limit
from agent.port.server import AgentServer, Control
from agent.port.status_model import FindingsStatus, LogPart, NodesFinding
from tools.http.description import REFERENCE, description
from tools.page.runs import status, without_private

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

_LOG = "/logs/{node}/{name}"
_SECONDS = 20.0
_UNENDING = "/events"
"""A stream that ends with its reader; tests/unit/port/test_stream.py covers it."""


class Head:
    """A head's port as in a run: with a status, logs, findings, and reports that are accepted."""

    def __init__(self, token: str | None, key: str | None = None) -> None:
        first = Reply(1, "run-1", "running", ray_ready=True, head_ip="10.0.0.1", news=0)
        expected = Expected(None, "", "", "")
        reports = Reports(
            *(first, expected, lambda _: None, lambda: 0.0),
            most=agent_limit(1000),
            has_token=token is not None,
        )
        self.site = AgentServer(
            token=token,
            ready=lambda: True,
            status=lambda _reader: without_private(status(3)),
            reports=reports,
            run_id=lambda: "run-1",
            control=Control(
                *(lambda: None, 5.0, key, self._findings, self._log),
                with_private=lambda _status: status(3),
                series=self._series,
            ),
        )
        self._up, self._over = threading.Event(), threading.Event()

    def _findings(self) -> FindingsStatus:
        found = Finding("shm", Level.WARN, "64 MiB", "more")
        rows = (NodesFinding(**asdict(found), nodes=("pod0",)),)
        return FindingsStatus(("pod0",), (), rows, (found,))

    async def _log(
        self, node: str, name: str, after: int | None, _before: int | None = None
    ) -> LogPart | str:
        if (node, name) != ("head", "job"):
            return f"{node} has no log {name!r}"
        return LogPart("step 1\n", (after or 0) + 7)

    def _series(self, since: int | None) -> SeriesPart:
        series = Series()
        series.add(1, 3, {"reward": 0.5}, 40)
        return series.part(since)

    @contextmanager
    def serve(self) -> Iterator[int]:
        """Serve it in a thread; yield its port."""
        taken = bind("127.0.0.1", 0)
        port = int(taken.getsockname()[1])
        thread = threading.Thread(target=lambda: anyio.run(self._serve, taken))
        thread.start()
        try:
            if not self._up.wait(_SECONDS):
                raise TimeoutError("the port is not served")
            yield port
        finally:
            self._over.set()
            thread.join(_SECONDS)

    async def _serve(self, taken: socket.socket) -> None:
        runner = await self.site.open([taken])
        self._up.set()
        await anyio.to_thread.run_sync(self._over.wait)
        await runner.cleanup()


def described() -> dict[str, Any]:
    """Return the description with every field of a report, from its types."""
    (report,), components = schema_components([Report], ref_template=REFERENCE)
    own = {"properties": {"protocol": {"const": VERSION}}, "required": ["protocol"]}
    found = description(__version__, {"allOf": [report, own]})
    found["components"]["schemas"] |= components
    node, name, *_ = found["paths"][_LOG]["get"]["parameters"]
    node["schema"], name["schema"] = {"enum": ["head", "pod9"]}, {"enum": ["job", "agent"]}
    return found


def main(argv: list[str]) -> int:
    """Return the worse exit code of two runs of schemathesis, or 2 where it is not installed."""
    parser = argparse.ArgumentParser(prog="scripts/http fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=100, help="for each path (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the examples (%(default)s)")
    options = parser.parse_args(argv)
    program = os.environ.get("SCHEMATHESIS") or shutil.which("schemathesis")
    if program is None:
        print(
            "schemathesis is not on PATH: `pip install schemathesis` in an environment apart, and "
            "set SCHEMATHESIS to its path",
            file=sys.stderr,
        )
        return 2
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder, Head(token).serve() as port:
        schema = Path(folder) / "openapi.json"
        schema.write_text(json.dumps(described()))
        common = [program, "run", str(schema), "--url", f"http://127.0.0.1:{port}"]
        common += ["--header", f"Authorization: Bearer {token}", "--seed", str(options.seed)]
        common += ["--max-examples", str(options.examples)]
        # a report of another version is answered with 200 and a refusal; limits that no schema
        # expresses with 400. Which field is refused: tests/unit/port/test_hostile.py
        unchecked = "negative_data_rejection,positive_data_acceptance"
        reports = ["--include-path", REPORT_PATH, "--exclude-checks", unchecked]
        others = ["--exclude-path", REPORT_PATH, "--exclude-path", _UNENDING]
        return max(
            subprocess.run([*common, *chosen], check=False, cwd=folder).returncode
            for chosen in (others, reports)
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
