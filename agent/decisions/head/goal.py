"""What the head was asked for: fixed at its start, and what all its decisions look at."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.work.recipes.recipe import NodeSize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.decisions.attempts import Tried
    from agent.decisions.head.underway import Underway
    from agent.node.facts import Facts
    from agent.work.prepare import PrepareStep
    from agent.work.services import ServiceSpec

OUR_RAY = "Ray on this node"
RAY_RESTARTS = 2


@dataclass(frozen=True)
class Goal:
    """What this run is to achieve, fixed at the start; times are on the run's own clock."""

    limits: Mapping[str, float]
    """Every wait's limit, by the key under which the plan shows it."""
    job_stop_grace: float
    """How long a job may take to stop."""
    expected_workers: int = 0
    least_workers: int = 0
    """Fewer do, once the workers' deadline has passed."""
    wants_job: bool = True
    is_sized: bool = False
    """True where the job is made for the nodes that joined: then it needs each that it counts."""
    run_id: str = "run"
    first_attempt: int = 1
    """The number of the first attempt: those of an earlier head of the same run count."""
    submission_id: str | None = None
    """The id by which a given Ray's owner will look for the job: that of the first attempt."""
    services: tuple[ServiceSpec, ...] = ()
    """Those of the whole run, wherever they live."""
    steps: tuple[PrepareStep, ...] = ()
    """The head's own prepare steps, in the order in which they are run."""
    disks: Mapping[str, str] = field(default_factory=dict)
    """On which disk of the head's each marker of its steps lies."""
    longest_prepare: float = 0.0
    """How long a worker may prepare, as long as it is heard of; nothing waits longer to start."""
    done: frozenset[str] = frozenset()
    """The head's own prepare steps that a killed agent of this node has finished."""
    retries: int = 0
    """Further attempts at the job after a loss."""
    tried: tuple[Tried, ...] = ()
    """The attempts of earlier heads of the same run that were lost."""
    former_nodes: tuple[str, ...] = ()
    """The workers that had a part in the last of these, by name."""
    underway: Underway | None = None
    """The attempt that an earlier agent submitted and left under way, its Ray being there still."""
    ray: str = OUR_RAY
    """What to call the Ray that must come up."""
    ray_is_given: bool = False
    """True where others start and stop it: then a job outlives this agent unless it is stopped."""
    ray_restarts: int = RAY_RESTARTS
    rank: int = 0
    """The head's own."""
    by_torchrun: bool = False
    """True where torchrun starts the job on every node, and no Ray runs."""
    node: str = ""
    """This node's name, and what it brings, for its own share of such a job."""
    size: NodeSize = NodeSize(0)
    facts: Facts | None = None
    """What the head's own machine is; None where nothing is compared with it."""
    preflight: bool = False
    """True where an all-reduce over all nodes was asked for before the job."""
    platform: str = ""
    """What these nodes were rented from."""
    brings_libraries: bool = False
    """True where the job's runtime_env may bring libraries of its own to every node."""

    @property
    def owns_ray(self) -> bool:
        """Say whether this head starts its Ray itself."""
        return not self.ray_is_given and not self.by_torchrun

    def service(self, name: str) -> ServiceSpec:
        """Return a service by its name."""
        return next(spec for spec in self.services if spec.name == name)

    def step(self, name: str) -> PrepareStep:
        """Return a prepare step by its name."""
        return next(step for step in self.steps if step.name == name)
