"""Which GPUs a node's processes may see: three variables that Ray and frameworks take for one.

ROCm's runtime hides GPUs by ROCR_VISIBLE_DEVICES first, and HIP_VISIBLE_DEVICES then counts in what
is left. Ray gives each actor its GPUs by one of them: by ROCR_ up to 2.44, by HIP_ from 2.45 on.

| Ray | ROCR_VISIBLE_DEVICES set (on AMD GPUs) |
| --- | --- |
| to 2.44 | is what it reads and sets |
| 2.45 to 2.47 | `import ray` fails, whatever else is set |
| from 2.48 on | `import ray` fails unless HIP_VISIBLE_DEVICES is set, too |

verl refuses ROCR_VISIBLE_DEVICES beside either of the others, on NVIDIA GPUs as well, where some
clusters' Slurm sets it; and both verl and vLLM refuse a CUDA_VISIBLE_DEVICES that differs from
HIP_VISIBLE_DEVICES, as it does in every actor, since Ray changes the latter alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.node.ray_versions import FIRST_WITH_HIP, version

if TYPE_CHECKING:
    from collections.abc import Mapping

ROCR, HIP, CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Devices:
    """How the user's choice of GPUs is passed on."""

    chosen: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    note: str = ""
    """What was changed and why; '' where all is passed on as it is."""

    def applied_to(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return an environment with the choice in the form that Ray and frameworks take."""
        left = {name: text for name, text in environ.items() if name not in self.dropped}
        return {**left, **dict(self.chosen)}


def devices(environ: Mapping[str, str], maker: str, ray: str | None) -> Devices:
    """Put the choice of GPUs into the one variable with which Ray gives them to its actors."""
    rocr, hip, cuda = (environ.get(name) for name in (ROCR, HIP, CUDA))
    if maker == "nvidia" and rocr is not None:
        why = "it means nothing to NVIDIA GPUs, and verl refuses it beside CUDA_VISIBLE_DEVICES"
        return Devices(dropped=(ROCR,), note=f"{ROCR} is not passed on: {why}")
    chosen = _in_hips_words(rocr, cuda if hip is None else hip)
    if not _gives_by_hip(maker, ray) or chosen is None:
        return Devices()
    others = {ROCR: rocr, CUDA: cuda if hip in {None, cuda} else None}
    dropped = tuple(name for name, text in others.items() if text is not None)
    if not dropped:
        return Devices()
    why = "Ray gives AMD GPUs to its actors by it alone, and refuses or contradicts the others"
    note = f"{HIP}={chosen} stands for {' and '.join(dropped)}, not passed on: {why}"
    return Devices(((HIP, chosen),), dropped, note)


def contradiction(environ: Mapping[str, str], maker: str, ray: str | None) -> str:
    """Say which two choices of GPUs cannot be made one; '' where they can."""
    rocr, hip, cuda = (environ.get(name) for name in (ROCR, HIP, CUDA))
    if not _gives_by_hip(maker, ray):
        return ""
    if hip is not None and cuda is not None and hip != cuda:
        return f"{HIP}={hip} and {CUDA}={cuda} differ"
    name, within = (CUDA, cuda) if hip is None else (HIP, hip)
    if rocr is not None and _in_hips_words(rocr, within) is None:
        return f"{name}={within} counts in {ROCR}={rocr}, which has no such place"
    return ""


def _gives_by_hip(maker: str, ray: str | None) -> bool:
    return maker == "amd" and ray is not None and version(ray) >= FIRST_WITH_HIP


def _in_hips_words(rocr: str | None, within: str | None) -> str | None:
    """Return one list for both, None where there is none; equal ones were meant as one choice."""
    if rocr is None or within is None or rocr == within:
        return within if rocr is None else rocr
    first, second = ([x.strip() for x in text.split(",")] for text in (rocr, within))
    if not all(x.isdigit() and int(x) < len(first) for x in second):
        return None
    return ",".join(first[int(x)] for x in second)
