"""Fixtures of the scenarios."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import podlab
from ignored_signals import keep_ignored_signals_from_children
from scenario import Cluster, need_lab, needed_in_pods

if TYPE_CHECKING:
    from collections.abc import Iterator

keep_ignored_signals_from_children()


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Pods with one identical environment; `@pytest.mark.pods(3, unpublished=…)` says how many."""
    need_lab()
    mark = request.node.get_closest_marker("pods")
    count = mark.args[0] if mark else 1
    names = [f"pod{letter}" for letter in "abcdef"[:count]]
    options = dict(mark.kwargs) if mark else {}
    with podlab.Lab(names=names, shm="1g", share=needed_in_pods(), **options) as lab:
        made = Cluster(
            lab,
            {
                "HEAD_POD_ID": names[0],
                "EXPECTED_WORKERS": str(count - 1),
                "AGENT_LOG_DIR": "/tmp/logs",
                "AGENT_ON_DONE": "exit",
            },
        )
        yield made
        report = getattr(request.node, "failed_call", None)
        if report:
            for container in made.started:
                print(container.tail())


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a folder that all pods see and may write to, as a network volume is."""
    with tempfile.TemporaryDirectory(prefix="pod-agent-shared-", dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def lab() -> Iterator[podlab.Lab]:
    """Three pods for all tests of a file; skipped, or in CI failed, where there can be none."""
    need_lab()
    with podlab.Lab(pods=3) as made:
        yield made


@pytest.fixture
def idle(lab: podlab.Lab) -> Iterator[list[podlab.Container]]:
    """Three idle containers, one on each pod."""
    containers = [pod.start(["sleep", "infinity"]) for pod in lab]
    yield containers
    for container in containers:
        container.kill()


@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note a failure on the test itself, so that its cluster can show the agents' words."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's result has no stub here
    if report.when == "call" and report.failed:
        item.failed_call = True  # type: ignore[attr-defined]  # our own note
