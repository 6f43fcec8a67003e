"""The head's goal: the configuration of a run, fixed at its start, as a frozen value."""

from __future__ import annotations

import math
from collections.abc import Mapping

from agent.base.ends import Outcome
from agent.base.value import Timestamp, Value
from agent.frameworks.recipe import NodeSize
from agent.job.groups import NodeGroup, is_kept_from_ray
from agent.job.services import (
    PrepareStep,
    ServiceSpec,
    member_index,
    service_of,
    service_only_ranks,
)
from agent.node.facts import Facts
from agent.plan.node_price import NodePrice

OUR_RAY = "Ray on this node"

StepOnDisk = tuple[str, str]  # a prepare step and the disk on which its marker lies


class HeadGoal(Value):
    """The configuration of this run; times are on the run's clock.

    It is fixed at the start, but for the price, and what a record of the run that is found again
    tells of hours and ranks.
    """

    limits: Mapping[str, float]  # the limit of each wait in seconds, by its key in the plan
    job_stop_grace: float  # seconds that a job may take to stop
    expected_workers: int = 0
    min_workers: int = 0  # these suffice after the workers' deadline (AGENT_PARTIAL)
    has_job: bool = True
    is_sized_to_nodes: bool = False  # its arguments are: the job needs each node that joined
    is_sized_by_links: bool = False  # its arguments depend on links that are not yet measured
    submission_id: str | None = None  # as the owner of a given Ray expects the first
    services: tuple[ServiceSpec, ...] = ()  # all services of the run, on every node
    groups: tuple[NodeGroup, ...] = ()  # of nodes beside the trainer, with their ranks
    addressed: frozenset[str] = frozenset()
    """Services on a rank whose node's address something names: it starts once that is known."""
    listed: frozenset[str] = frozenset()  # services whose members' addresses something names
    steps: tuple[PrepareStep, ...] = ()  # the head's own prepare steps, in their order
    max_prepare_seconds: float = 0.0  # while a worker reports; also the limit of a blocked start
    has_record: bool = False  # of the run by an earlier agent: it has what that one wanted
    finished_steps: frozenset[str] = frozenset()  # the head's own, by a killed agent of this node
    retries: int = 0  # how many attempts may follow the first one after losses
    former_head: str = ""  # the node of an earlier head, if the last attempt may still run there
    asks_for_jobs: bool = False  # of this run on a given Ray: no record tells of its attempts
    has_former_ray: bool = False  # this node's Ray was started by a killed agent
    ray: str = OUR_RAY  # the name of Ray in messages
    ray_is_given: bool = False  # others start and stop Ray: the job outlives this agent
    rank: int = 0  # the head's own
    shares_by: str = ""  # the launcher that starts the job on every node without Ray, or ''
    node: str = ""  # this node's name; `size` has its GPUs, CPUs and memory
    size: NodeSize = NodeSize(0)
    facts: Facts | None = None  # of the head's machine; None if nodes are not compared
    preflight: bool = False  # AGENT_PREFLIGHT asks for an all-reduce over all nodes first
    gcs_port: int = 0  # of Ray, for messages
    job: str = ""  # its name in messages
    watch: str = ""  # how to open the page from elsewhere
    boot_limit: float = math.inf  # seconds that a boot may take, all its waits together
    began_at: Timestamp = 0.0  # when the run's clock was 0, in UTC
    max_hours: float = math.inf  # AGENT_MAX_HOURS
    used_hours: float = 0.0  # of these, used by earlier agents of the run
    price: NodePrice | None = None  # RunPod's may come later
    max_cost: float = math.inf  # AGENT_MAX_COST, in dollars
    paid: float = 0.0  # of these, by earlier agents of the run that knew a price
    paid_hours: float = 0.0  # the part of `used_hours` that they paid with it
    notice_signal: int = 0  # the signal on which the job saves (AGENT_NOTICE_SIGNAL); 0 for none
    framework: str = ""  # that is asked whether it accepts the job's command; '' for none
    refusal: Outcome | None = None  # why this node's checks forbid the run
    brings_libraries: bool = False  # the job's runtime_env may install its own on every node

    @property
    def ends_at(self) -> float:
        """Return when AGENT_MAX_HOURS is over, on the run's clock."""
        return (self.max_hours - self.used_hours) * 3600

    @property
    def nodes(self) -> int:
        """Return the nodes of the run, which bill whether or not they have joined."""
        return self.last_rank + 1

    @property
    def step_names(self) -> frozenset[str]:
        """Return the names of all prepare steps."""
        return frozenset(step.name for step in self.steps)

    @property
    def service_only_ranks(self) -> frozenset[int]:
        """Return the ranks of nodes that only run a service and do not join Ray."""
        return service_only_ranks(self.services)

    def cost(self, now: float) -> float | None:
        """Return the dollars of the run so far, all its agents together; None without a price."""
        if self.price is None:
            return None
        hours = self.used_hours - self.paid_hours + now / 3600
        return self.paid + self.price.cost(hours, self.nodes)

    def costs_at(self, dollars: float) -> float:
        """Return when the run has cost so much, on its clock; never without a price."""
        if self.price is None or math.isinf(dollars):
            return math.inf
        hours = self.price.hours(dollars - self.paid, self.nodes)
        return (hours + self.paid_hours - self.used_hours) * 3600

    @property
    def by_shares(self) -> bool:
        """Return whether a launcher starts the job on every node, and no Ray runs."""
        return bool(self.shares_by)

    @property
    def owns_ray(self) -> bool:
        """Return whether this head starts Ray itself."""
        return not self.ray_is_given and not self.by_shares

    def is_outside_ray(self, rank: int | None, group: str) -> bool:
        """Return whether a node joins no Ray: by its rank, or by the group that it names."""
        return rank in self.service_only_ranks or is_kept_from_ray(self.groups, group, rank)

    @property
    def last_rank(self) -> int:
        """Return the highest rank that the expected nodes have."""
        return self.expected_workers + len(self.service_only_ranks)

    def is_of_group(self, name: str) -> bool:
        """Return whether this is the name of a service of a group, or of a member of one."""
        return self.service(name).where.kind == "group"

    def service(self, name: str) -> ServiceSpec:
        """Return the service of this name, or one of its members."""
        of_all = service_of(name)
        spec = next(spec for spec in self.services if spec.name == of_all)
        return spec if of_all == name else spec.member(member_index(name))
