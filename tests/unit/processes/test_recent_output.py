"""The output of torchrun reaches all readers though its log's disk is full."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from agent.processes.output import OutputCopies, PreambleFilter, RecentOutput
from agent.processes.process import Child
from agent.record.job_lines import JobLines
from support.job_series import rewards

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no full disk here")
def test_an_output_whose_disk_is_full(capfd: pytest.CaptureFixture[str]) -> None:
    """Stdout and the watcher get all of it, and the exit code is the child's."""
    recent, lines = RecentOutput(FULL), JobLines(str)
    output = OutputCopies(recent, PreambleFilter())
    output.to_stdout(0, lambda _count: None)
    output.to_watcher(lines)
    output.start()
    argv = ["sh", "-c", "for n in 1 2 3; do echo step $n/3 mean reward 0.5 || exit 1; done; exit 7"]

    async def run() -> int:
        add = recent.add
        child = await Child.start("job", argv, os.environ, lambda: FULL, on_output=add)
        return await child.wait()

    assert anyio.run(run) == 7
    output.finish(20.0)
    text = "".join(f"step {n}/3 mean reward 0.5\n" for n in (1, 2, 3))
    assert capfd.readouterr().out == recent.end(1000).decode() == text
    assert rewards(lines) == (3, [(n, 0.5) for n in (1, 2, 3)])


def test_a_slow_reader_gets_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    """What is no longer kept is counted in a line; memory is bounded."""
    recent = RecentOutput(FULL, most=100)
    for number in range(100):
        recent.add(b"line %3d\n" % number)
    assert recent.size == 900
    output = OutputCopies(recent, PreambleFilter())
    output.to_stdout(0, lambda _count: None)
    output.start()
    output.finish(20.0)
    out = capfd.readouterr().out
    first, last = out.index("(") + 1, len("line  99\n")
    lost = int(out[first : out.index(" bytes were lost here)\n")])
    assert out.endswith("line  99\n")
    kept = out.partition("here)\n")[2]
    assert lost + len(kept) == 900
    assert 100 <= len(kept) <= 200 + last
