"""A pod's file system: the machine's, with private folders mounted over it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tools.lab.launch import Mount

HOME = "/run/home"
# Private folders and the staging folder of each; /tmp last, since the staging folders are in it.
AREAS = {"/run": "run", "/dev/shm": "shm", "/tmp": "tmp"}
FOLDERS = ("run", "shm", "tmp", "home", "sys", "image")
CGROUPS = Path("/sys/fs/cgroup")


def needed_paths(share: Iterable[Path] = ()) -> list[Path]:
    """List paths that pods must see even inside a private folder: repository, Python and venv."""
    wanted = [Path(__file__).parents[3], Path(sys.prefix), Path(sys.base_prefix), *share]
    both = {path.absolute() for path in wanted} | {path.resolve() for path in wanted}
    return sorted(path for path in both if path.exists())


def staged(path: Path, root: Path) -> Path | None:
    """Return where a path in a private folder is prepared before that is mounted, else None."""
    for area, folder in AREAS.items():
        if path.is_relative_to(area) and path != Path(area):
            return root / folder / path.relative_to(area)
    return None


def _step(kind: str, source: str | Path, target: str | Path, options: str = "") -> Mount:
    return {"kind": kind, "source": str(source), "target": str(target), "options": options}


def image_root(root: Path) -> Path:
    """Return the folder where an image's file system is assembled."""
    return root / "image" / "top"


def image_mount_plan(
    image: Path, root: Path, etc: Path, shm: str, volumes: Mapping[str, Path]
) -> list[Mount]:
    """List the mounts that make a pod's file system from an image and volumes only.

    The image stays unchanged: the container's writes go to memory, and are discarded with the
    container. A volume is a file or folder of the machine, at a path in the container.
    """
    layer, top = root / "image", image_root(root)
    upper, work = layer / "upper", layer / "work"
    steps = [_step("tmpfs", "tmpfs", layer, "mode=755")]
    steps += [_step("folder", "", folder) for folder in (upper, work, top)]
    written = f"lowerdir={image},upperdir={upper},workdir={work}"
    steps += [
        _step("overlay", "overlay", top, written),
        _step("tmpfs", "tmpfs", top / "run", "mode=755"),
        _step("place", root / "home", top / HOME.lstrip("/")),
        _step("bind", root / "tmp", top / "tmp"),
        _step("bind", "/dev", top / "dev"),
        _step("tmpfs", "tmpfs", top / "dev/shm", f"mode=1777,size={shm}"),
        _step("sysfs", "sysfs", top / "sys"),
    ]
    if CGROUPS.is_dir():
        steps.append(_step("bind", CGROUPS, top / "sys/fs/cgroup"))
    steps += [_step("place", etc / name, top / "etc" / name) for name in ("hosts", "resolv.conf")]
    steps += [_step("place", source, top / at.lstrip("/")) for at, source in volumes.items()]
    steps.append(_step("proc", "proc", top / "proc"))
    return steps


def mount_plan(root: Path, etc: Path, shm: str, needed: Iterable[Path]) -> list[Mount]:
    """List the mounts that turn the machine's file system into a pod's.

    root has the pod's folders, etc its hosts and resolv.conf. The private folders are first
    assembled under root, then moved to their targets.
    """
    steps = [
        _step("tmpfs", "tmpfs", root / "run", "mode=755"),
        _step("tmpfs", "tmpfs", root / "shm", f"mode=1777,size={shm}"),
        _step("bind", root / "tmp", root / "tmp"),
        _step("place", root / "home", root / "run" / Path(HOME).relative_to("/run")),
    ]
    done: list[Path] = []
    for path in needed:
        place = staged(path, root)
        if place and not any(path.is_relative_to(outer) for outer in done):
            steps.append(_step("place", path, place))
            done.append(path)
    for name in ("hosts", "resolv.conf"):
        real = Path(os.path.realpath(f"/etc/{name}"))  # resolv.conf is often a link into /run
        place = staged(real, root)
        steps.append(_step("place" if place else "bind", etc / name, place or real))
    steps.append(_step("sysfs", "sysfs", root / "sys"))  # a new one, to show the pod's interfaces
    if CGROUPS.is_dir():
        steps.append(_step("bind", CGROUPS, root / "sys/fs/cgroup"))
    steps.append(_step("move", root / "sys", "/sys"))
    steps += [_step("move", root / folder, area) for area, folder in AREAS.items()]
    steps.append(_step("proc", "proc", "/proc"))
    return steps
