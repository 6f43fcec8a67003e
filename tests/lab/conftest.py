"""Fixtures of the scenarios."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tools.lab as podlab
from support.ignored_signals import keep_ignored_signals_from_children
from support.scenario import Cluster, need_lab, needed_in_pods

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

keep_ignored_signals_from_children()


@contextmanager
def cluster_of(
    count: int, request: pytest.FixtureRequest, options: Mapping[str, Any] | None = None
) -> Iterator[Cluster]:
    """Create pods with one identical environment; on a failure, print their agents' logs."""
    need_lab()
    names = [f"pod{letter}" for letter in "abcdef"[:count]]
    with podlab.Lab(names=names, shm="1g", share=needed_in_pods(), **options or {}) as lab:
        made = Cluster(
            lab,
            {
                "HEAD_POD_ID": names[0],
                "EXPECTED_WORKERS": str(count - 1),
                "AGENT_LOG_DIR": "/tmp/logs",
                "AGENT_LOG": "console",  # all lines
                "AGENT_ON_DONE": "exit",
            },
        )
        yield made
        if getattr(request.node, "failed_call", False):
            for container in made.started:
                print(container.tail())


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Pods for one scenario; `@pytest.mark.pods(3, unpublished=…)` sets their number."""
    mark = request.node.get_closest_marker("pods")
    count, options = (mark.args[0], mark.kwargs) if mark else (1, None)
    with cluster_of(count, request, options) as made:
        yield made


@pytest.fixture(scope="module")
def shared_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two pods for all scenarios of a file."""
    with cluster_of(2, request) as made:
        yield made


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a folder that all pods can read and write, like a network volume."""
    with tempfile.TemporaryDirectory(prefix="pod-agent-shared-", dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def lab() -> Iterator[podlab.Lab]:
    """Three pods for all tests of a file; skipped, or failed in CI, where no lab can be made."""
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
    """Record a failure on the test and its file, so that their cluster prints its agents' logs."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's result has no stub here
    if report.when in {"setup", "call"} and report.failed:
        for node in (item, item.parent):
            node.failed_call = True  # type: ignore[union-attr]  # an attribute of ours
