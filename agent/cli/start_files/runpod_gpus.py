"""The kinds of GPU that RunPod rents, by id or a short name."""

from __future__ import annotations

import re
from difflib import get_close_matches

from agent.base.value import Value

_KINDS = """
AMD Instinct MI300X OAM | MI300X | 192
NVIDIA A100 80GB PCIe | A100 PCIe | 80
NVIDIA A100-SXM4-80GB | A100 SXM | 80 | cluster
NVIDIA A30 | A30 | 24
NVIDIA A40 | A40 | 48
NVIDIA B200 | B200 | 180 | cluster
NVIDIA B300 SXM6 AC | B300 | 288
NVIDIA GeForce RTX 3070 | RTX 3070 | 8
NVIDIA GeForce RTX 3080 | RTX 3080 | 10
NVIDIA GeForce RTX 3080 Ti | RTX 3080 Ti | 12
NVIDIA GeForce RTX 3090 | RTX 3090 | 24
NVIDIA GeForce RTX 3090 Ti | RTX 3090 Ti | 24
NVIDIA GeForce RTX 4070 Ti | RTX 4070 Ti | 12
NVIDIA GeForce RTX 4080 | RTX 4080 | 16
NVIDIA GeForce RTX 4080 SUPER | RTX 4080 SUPER | 16
NVIDIA GeForce RTX 4090 | RTX 4090 | 24
NVIDIA GeForce RTX 5080 | RTX 5080 | 16
NVIDIA GeForce RTX 5090 | RTX 5090 | 32
NVIDIA H100 80GB HBM3 | H100 SXM | 80 | cluster
NVIDIA H100 NVL | H100 NVL | 94
NVIDIA H100 PCIe | H100 PCIe | 80
NVIDIA H200 | H200 SXM | 141 | cluster
NVIDIA H200 NVL | H200 NVL | 143
NVIDIA L4 | L4 | 24
NVIDIA L40 | L40 | 48
NVIDIA L40S | L40S | 48
NVIDIA RTX 2000 Ada Generation | RTX 2000 Ada | 16
NVIDIA RTX 4000 Ada Generation | RTX 4000 Ada | 20
NVIDIA RTX 4000 SFF Ada Generation | RTX 4000 Ada SFF | 20
NVIDIA RTX 5000 Ada Generation | RTX 5000 Ada | 32
NVIDIA RTX 6000 Ada Generation | RTX 6000 Ada | 48
NVIDIA RTX A2000 | RTX A2000 | 6
NVIDIA RTX A4000 | RTX A4000 | 16
NVIDIA RTX A4500 | RTX A4500 | 20
NVIDIA RTX A5000 | RTX A5000 | 24
NVIDIA RTX A6000 | RTX A6000 | 48
NVIDIA RTX PRO 4500 Blackwell | RTX PRO 4500 | 32
NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition | RTX PRO 6000 MaxQ | 96
NVIDIA RTX PRO 6000 Blackwell Server Edition | RTX PRO 6000 | 96
NVIDIA RTX PRO 6000 Blackwell Workstation Edition | RTX PRO 6000 WK | 96
Tesla V100-PCIE-16GB | Tesla V100 | 16
Tesla V100-SXM2-16GB | V100 SXM2 | 16
Tesla V100-SXM2-32GB | V100 SXM2 32GB | 32
"""
"""RunPod's id, its name in the console, GB, and whether Instant Clusters are made of it.

From RunPod's documentation of August 2026 (references/gpu-types, instant-clusters).
"""

MOST_GPUS = 8
"""Of a pod, which is on one machine; `maxCount` of RunPod's catalog says less for some kinds."""
MOST_PODS = 250
"""Of an Instant Cluster, by RunPod's API; above 8, RunPod's documentation says to ask its sales."""
_MAKERS = ("NVIDIA", "AMD", "Tesla")
_CATALOG = "GET https://api.runpod.io/v2/catalog/gpus lists them"


class RunpodGpu(Value, frozen=True):
    """A kind of GPU."""

    id: str
    name: str = ""
    memory: int | None = None  # In GB; None for a kind that is not known here
    in_clusters: bool = True

    @property
    def words(self) -> frozenset[str]:
        """Return all words by which it can be named."""
        return _words(f"{self.id} {self.name} {self.memory}GB")


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Z0-9]+", text.upper().replace("RTX", "RTX ")))


def _read(row: str) -> RunpodGpu:
    id_, name, memory, *more = (cell.strip() for cell in row.split("|"))
    return RunpodGpu(id_, name, int(memory), in_clusters=bool(more))


GPUS = tuple(_read(row) for row in _KINDS.strip().splitlines())


def gpus_named(name: str) -> tuple[RunpodGpu, ...]:
    """Return the kinds that a name may mean: that of this id or name, else all with its words."""
    for gpu in GPUS:
        plain = gpu.id.removeprefix("NVIDIA ").removeprefix("GeForce ")
        if name.casefold() in {gpu.id.casefold(), gpu.name.casefold(), plain.casefold()}:
            return (gpu,)
    words = _words(name)
    return tuple(gpu for gpu in GPUS if words and words <= gpu.words)


def runpod_gpu(name: str, *, in_cluster: bool) -> RunpodGpu:
    """Return the kind of GPU that a user names; raises ValueError with what to write instead."""
    found = gpus_named(name)
    fitting = tuple(gpu for gpu in found if gpu.in_clusters or not in_cluster)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        kinds = " or ".join(f"'{gpu.name}'" for gpu in fitting)
        raise ValueError(f"--gpu-type {name} may be {kinds}: write one of them")
    if found:
        kinds = ", ".join(gpu.name for gpu in GPUS if gpu.in_clusters)
        raise ValueError(
            f"--gpu-type {name}: RunPod makes Instant Clusters of {kinds}; others are for"
            " --kind pods"
        )

    # A whole id may be newer than the table.
    if name.startswith(_MAKERS) and " " in name:
        return RunpodGpu(name)
    names = [word for gpu in GPUS for word in (gpu.name, gpu.id)]
    near = get_close_matches(name.upper(), names, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else _CATALOG
    raise ValueError(f"--gpu-type {name} is no GPU of RunPod: {hint}")


def check_counts(nodes: int, gpus: int, *, in_cluster: bool) -> None:
    """Refuse a pod or a cluster of a size that RunPod does not rent; raises ValueError."""
    if gpus > MOST_GPUS:
        pods = f"--nodes {nodes * -(-gpus // MOST_GPUS)} --gpus {MOST_GPUS}"
        raise ValueError(f"--gpus {gpus}: a pod of RunPod has at most {MOST_GPUS} GPUs: {pods}")
    if gpus == 0:
        raise ValueError("--gpus 0: every pod that is asked for has a GPU: --gpus 1")
    if in_cluster and nodes > MOST_PODS:
        raise ValueError(f"--nodes {nodes}: an Instant Cluster has at most {MOST_PODS} pods")
