"""Failure bundles of a lab's pods."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

from support.scenario import Cluster, last_line

if TYPE_CHECKING:
    from pathlib import Path

    from tools.lab import Container


def bundles(cluster: Cluster, pod: int) -> list[Path]:
    """Return the bundles of a pod's run folder."""
    return sorted(cluster.file(pod, "x").parent.glob("failure-*.tar.gz"))


def bundle_contents(cluster: Cluster, pod: int, container: Container) -> dict[str, str]:
    """Return the contents of a pod's only bundle, whose path the last log line gives."""
    (path,) = bundles(cluster, pod)
    where = last_line(container).rpartition(" ")[2]
    assert where.endswith(f"/{path.name}"), last_line(container)
    assert cluster.outcome(pod)["bundle"] == path.name
    assert path.stat().st_mode & 0o777 == 0o600
    found = unpacked(path)
    assert json.loads(found["outcome.json"])["remedy"] == cluster.outcome(pod)["remedy"]
    return found


def unpacked(path: Path) -> dict[str, str]:
    """Unpack a bundle: text by file name."""
    with tarfile.open(path) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive.getmembers()]
        return {
            name.partition("/")[2]: file.read().decode() for name, file in files if file is not None
        }
