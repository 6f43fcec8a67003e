"""The sets of nodes for which every recipe is made."""

from __future__ import annotations

from dataclasses import dataclass

CPUS_A_GPU = 12
CPUS_BESIDE = 4


@dataclass(frozen=True)
class Nodes:
    """One set of nodes: GPUs of each, the head first."""

    name: str
    gpus: tuple[int, ...]
    tensor_parallel: int = 1
    cpus: int = 0
    """CPUs of each node; 0: as many as rented nodes have."""

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Return GPUs and CPUs of each node."""
        return tuple((gpus, self.cpus or gpus * CPUS_A_GPU + CPUS_BESIDE) for gpus in self.gpus)


CLUSTERS = (
    Nodes("1x1", (1,)),
    Nodes("1x8", (8,)),
    Nodes("2x8", (8, 8)),
    Nodes("3x8", (8, 8, 8)),
    Nodes("16x8", (8,) * 16),
    Nodes("2x4 tp4", (4, 4), tensor_parallel=4),
    Nodes("8+8+4", (8, 8, 4)),
    Nodes("4+8", (4, 8)),
    Nodes("CPU head + 2x8", (0, 8, 8)),
    Nodes("2x8 of 28 CPUs", (8, 8), cpus=28),
    Nodes("1x8 of 8 CPUs", (8,), cpus=8),
)
