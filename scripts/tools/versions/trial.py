"""One pair: make its environment, run the lab's scenarios with it, remove it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tools.versions.environment import REPO, CannotMakeError, make, remove, versions_of
from tools.versions.pairs import Scenario, scenarios
from tools.versions.results import FAILED, Result, Step, of_steps, passed_word

if TYPE_CHECKING:
    from pathlib import Path

    from tools.versions.pairs import Pair

SCENARIO_LIMIT = 270.0
"""A little above pytest's own limit for a test, whose message is better."""
CLEAN_UP_LIMIT = 30.0
LONGEST = 300


def attempt(pair: Pair, log: Path, *, keep: bool) -> Result:
    """Run one pair and return its result; only unexpected errors are raised."""
    began = time.monotonic()
    log.unlink(missing_ok=True)
    folder: Path | None = None
    try:
        folder = make(pair, log)
        versions = versions_of(folder)
        steps = [play(scenario, folder, log) for scenario in scenarios(versions[0])]
    except CannotMakeError as cannot:
        seconds = time.monotonic() - began
        return Result(pair, cannot.word, seconds=seconds, what=cannot.what)
    finally:
        if folder is not None and not keep:
            remove(folder)
    return of_steps(pair, versions, time.monotonic() - began, steps)


def play(scenario: Scenario, folder: Path, log: Path) -> Step:
    """Run one scenario; pods use agent and Ray of the folder, the lab uses this Python."""
    argv = [sys.executable, "-m", "pytest", "-rfEs", "--tb=short", scenario.test]
    env = {**os.environ, "POD_AGENT_ENVIRONMENT": str(folder), "CI": "true"}
    began = time.monotonic()
    with log.open("ab") as sink:
        starts = sink.tell()
        code = run_to_its_end(argv, env, sink.fileno())
    seconds = time.monotonic() - began
    if code == 0:
        return Step(scenario.name, passed_word(scenario.test), seconds)
    said = log.read_bytes()[starts:].decode(errors="replace")
    return Step(scenario.name, FAILED, seconds, what_failed(said))


def run_to_its_end(argv: list[str], env: dict[str, str], sink: int) -> int:
    """Run pytest so that it can remove its lab even if this process is stopped."""
    # a new session: a signal for our process group must not kill it while it uses its lab
    process = subprocess.Popen(
        argv, env=env, cwd=REPO, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        return process.wait(SCENARIO_LIMIT)
    except subprocess.TimeoutExpired:
        return 1
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(CLEAN_UP_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def what_failed(said: str) -> str:
    """Return pytest's summary of a failure."""
    lines = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (lines or said.strip().splitlines() or ["nothing printed by pytest"])[-1].strip()[
        :LONGEST
    ]
