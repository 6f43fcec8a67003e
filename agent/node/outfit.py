"""What a node wears: what should be the same on all nodes of a run, read without waking a GPU."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent import __version__
from agent.node.facts import Outfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LONGEST_NAME = 200
_IMAGES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "NVIDIA_BUILD_ID")
"""Where a container learns what it was made from: most runtimes tell it nothing."""
_MODEL = "Model:"


def look_at_outfit(environ: Mapping[str, str], gpu_maker: str) -> Outfit:
    """Look at what the nodes of a run compare."""
    return Outfit(
        agent=__version__,
        image=next((environ[name] for name in _IMAGES if environ.get(name)), "")[:_LONGEST_NAME],
        gpu_models=gpu_models(gpu_maker, Path("/proc/driver/nvidia/gpus"), Path("/sys/class/drm")),
    )


def gpu_models(maker: str, nvidia: Path, drm: Path) -> tuple[str, ...]:
    """Name the models of this node's GPUs by what their driver has in files."""
    if maker == "nvidia":
        return tuple(sorted(set(_nvidia(nvidia))))
    return tuple(sorted(set(_amd(drm)))) if maker == "amd" else ()


def _nvidia(folder: Path) -> Iterator[str]:
    for file in folder.glob("*/information"):
        with suppress(OSError, UnicodeDecodeError):
            lines = file.read_text(encoding="utf-8").splitlines()
            yield from (x.removeprefix(_MODEL).strip() for x in lines if x.startswith(_MODEL))


def _amd(folder: Path) -> Iterator[str]:
    """Name an AMD GPU by its product and memory; not every board tells its product."""
    for device in folder.glob("renderD*/device"):
        with suppress(OSError, ValueError):
            gib = round(int((device / "mem_info_vram_total").read_text()) / (1 << 30))
            name = ""
            with suppress(OSError):
                name = (device / "product_name").read_text(encoding="utf-8").strip()
            yield f"{name or 'AMD'} {gib} GiB"
