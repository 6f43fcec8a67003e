"""The option --passed: an interrupted run of all tests continues where it stopped.

All that is collected stays: the garbage collection leaves it out, which saves a process of xdist
several seconds.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

PASSED = pytest.StashKey[frozenset[str]]()

gc.disable()  # until all is collected


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare --passed."""
    parser.addoption(
        "--passed",
        type=Path,
        metavar="FILE",
        help="leave out the tests that this file lists, and add each test that passes",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read the file once in the controller, so that each xdist worker gets the same list."""
    path: Path | None = config.getoption("passed")
    lines: list[str] = []
    if hasattr(config, "workerinput"):
        lines = config.workerinput["passed"]
    elif path is not None and path.exists():
        lines = path.read_text().splitlines()
    config.stash[PASSED] = frozenset(lines)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Send the list to an xdist worker."""
    node.workerinput["passed"] = sorted(node.config.stash[PASSED])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that have passed."""
    passed = config.stash[PASSED]
    done = [item for item in items if item.nodeid in passed]
    if done:
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item.nodeid not in passed]


def pytest_collection_finish() -> None:
    """Collect garbage from here on, except among the tests and what they have imported."""
    gc.freeze()
    gc.enable()


class _Recorder:
    """Appends each test that passed or was skipped to the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        done = report.passed if report.when == "call" else report.skipped
        if done:
            with self.path.open("a") as file:
                file.write(f"{report.nodeid}\n")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Record from here on, in the controller: xdist workers report to it."""
    path: Path | None = session.config.getoption("passed")
    if path is not None and not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Recorder(path))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Report success if every test had passed before and none is left to run."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash[PASSED]:
        session.exitstatus = pytest.ExitCode.OK
