"""A model of Ray with its slowest behavior: clusters, raylets, jobs.

Actors outlast their driver until their raylet ends; GCS reports a dead node late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.simulated.machines import Machine
    from support.simulated.programs import Process
    from support.simulated.world import World

FALLS, HANGS, GOES_ON = "falls", "hangs", "goes on"
MISSED_AFTER = 17.0
"""Seconds for which GCS lists a node that does not answer."""


_NUM_GPUS = "--num-gpus="


def gpus_in(process: Process | None) -> float:
    """Return the GPUs that a `ray start` says; none without a process, on a given Ray."""
    words = () if process is None else process.argv
    return next((float(word[len(_NUM_GPUS) :]) for word in words if word.startswith(_NUM_GPUS)), 0)


class Raylet:
    """Ray on a node other than the cluster's head."""

    def __init__(self, cluster: Cluster, machine: Machine) -> None:
        self.cluster, self.machine = cluster, machine
        self.id = f"{machine.name}-raylet{cluster.world.count()}"
        self.lives = True
        self.is_up = False
        self.is_dead_for_gcs = False
        self.process: Process | None = None  # none of a node of a given Ray
        cluster.world.later(cluster.world.random.uniform(0.5, 3), self._join)

    @property
    def gpus(self) -> float:
        """Return the GPUs that it counts."""
        return gpus_in(self.process)

    def _join(self) -> None:
        cluster = self.cluster
        if not self.lives:
            return
        if cluster.has_gcs and cluster.reaches(self.machine):
            self.is_up = True
            cluster.listed[self.id] = self
            cluster.joined(self)
        elif cluster is cluster.world.given:  # its owner starts it until it joins
            cluster.world.later(2.0, self._join)
        else:
            self.end("could not join", at_once=True)

    def end(self, why: str, *, at_once: bool) -> None:
        """Stop it with everything that runs on it; `at_once` if GCS sees the end."""
        if not self.lives:
            return
        self.lives = False
        random = self.cluster.world.random
        self.cluster.missed(self, 0.1 if at_once else random.uniform(0.5, MISSED_AFTER))
        for job in self.cluster.jobs.values():
            job.loses(self)
        if self.machine.raylet is self:
            self.machine.raylet = None
        if self.process is not None:
            self.process.end(1, why)


class Cluster:
    """One start of a head's Ray."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine = world, machine
        self.lives = True
        self.has_gcs = False
        self.is_up = False
        self.process: Process | None = None  # none of a given Ray
        self.listed: dict[str, Raylet] = {}
        self.dead: dict[str, Raylet] = {}
        self.jobs: dict[str, Job] = {}
        self.mute_until = 0.0
        """Until then it does not answer questions about jobs."""
        self.on_change: list[Callable[[], None]] = []
        opened = world.random.uniform(0.5, 2)
        world.later(opened, self._open)
        world.later(opened + world.random.uniform(1, 4), self._up)

    def reaches(self, machine: Machine) -> bool:
        """Return whether its head and a node can reach each other."""
        return self.world.network.reaches(self.machine, machine)

    def _open(self) -> None:
        if self.lives:
            self.has_gcs = True
            self.changed()

    def _up(self) -> None:
        if self.lives:
            self.is_up = True
            self.changed()

    def changed(self) -> None:
        """Notify those that watch it."""
        for look in [*self.on_change]:
            look()

    def joined(self, raylet: Raylet) -> None:
        """Let GCS list a node; a running job may use it at once."""
        for job in self.jobs.values():
            if job.has_driver and self.world.random.random() < 0.5:
                job.uses.add(raylet)
        self.changed()

    def missed(self, raylet: Raylet, after: float) -> None:
        """Let GCS remove a node some time later, unless it has answered by then."""
        self.world.later(after, self._miss, raylet, self.world.now)

    def _miss(self, raylet: Raylet, since: float) -> None:
        cut_again = max(self.machine.severed_at, raylet.machine.severed_at) > since
        has_answered = self.reaches(raylet.machine) or cut_again
        if raylet.lives and has_answered:
            return
        if self.listed.pop(raylet.id, None) is not None:
            self.dead[raylet.id] = raylet
            raylet.is_dead_for_gcs = True
            for job in self.jobs.values():
                job.loses(raylet)
            self.changed()

    def submit(self, id_: str, number: int, needed: int | None) -> None:
        """Accept a job with `needed` workers, or with all nodes if it is sized for them."""
        if id_ not in self.jobs:
            self.jobs[id_] = Job(self, id_, number, needed)
            self.world.rules.begins(self.jobs[id_])

    def end(self) -> None:
        """End GCS and the head's raylet; drivers outlast them for a while."""
        if not self.lives:
            return
        self.lives = self.has_gcs = self.is_up = False
        for job in self.jobs.values():
            self.world.later(self.world.random.uniform(0, 5), job.end_driver)
        if self.process is not None:
            self.process.end(1, "its GCS is gone")
        for raylet in [*self.listed.values()]:  # a raylet without its GCS ends after a minute
            self.world.later(60.0, raylet.end, "its GCS is gone", at_once=True)
        self.changed()

    def end_drivers(self) -> None:
        """End processes of jobs that still run on the head's machine."""
        for job in self.jobs.values():
            job.end_driver()


class Job:
    """One submission: its driver, and its actors on the nodes that it uses."""

    def __init__(self, cluster: Cluster, id_: str, number: int, needed: int | None) -> None:
        self.cluster, self.id, self.number = cluster, id_, number
        self.status: str = "RUNNING"
        self.code: int | None = None
        self.has_driver = True
        self.uses = {one for one in cluster.listed.values() if one.lives}
        places = len(self.uses)
        self._spare = 0 if needed is None else max(0, places - needed)
        self._needs = {*self.uses}
        self._lost: set[Raylet] = set()
        self.fell_by_loss = False
        world = cluster.world
        world.later(world.setup.job_seconds, self._succeeds)

    @property
    def lives(self) -> bool:
        """Return whether any of its processes runs."""
        return self.has_driver or any(one.lives for one in self.uses)

    def _succeeds(self) -> None:
        if not self.is_stuck:
            code = self.cluster.world.setup.job_code
            self.finish("FAILED" if code else "SUCCEEDED", code)

    @property
    def _lost_too_many(self) -> bool:
        return len(self._lost) > self._spare

    def loses(self, raylet: Raylet) -> None:
        """Lose the actors on a node; a job that needs them fails, or hangs."""
        if raylet not in self._needs or raylet in self._lost or self.status != "RUNNING":
            return
        self._lost.add(raylet)
        world = self.cluster.world
        if self._lost_too_many and world.setup.on_loss == FALLS:
            world.later(world.random.uniform(0.3, world.setup.fails_within), self._falls)

    @property
    def is_stuck(self) -> bool:
        """Return whether it can no longer make progress."""
        falls = self.cluster.world.setup.on_loss != GOES_ON
        return self.status == "RUNNING" and falls and self._lost_too_many

    def _falls(self) -> None:
        if self.has_driver and self.status == "RUNNING":
            self.fell_by_loss = True
            self.finish("FAILED", 1)

    def finish(self, status: str, code: int | None = None) -> None:
        """End, even if its submitter is gone."""
        if self.status != "RUNNING" or not self.has_driver or not self.cluster.lives:
            return
        self.status, self.code = status, code
        self.cluster.world.note(self.cluster.machine.label, f"job {self.id} ends: {status} {code}")
        self.end_driver()
        self.cluster.changed()

    def stop(self) -> None:
        """Stop after a request: it takes time, and may succeed before."""
        world = self.cluster.world
        succeeds = world.random.random() < 0.15 and not self.is_stuck
        status, code = ("SUCCEEDED", 0) if succeeds else ("STOPPED", None)
        world.later(world.random.uniform(0, 14), self.finish, status, code)

    def end_driver(self) -> None:
        """End its driver; on a given Ray the actors end with it."""
        self.has_driver = False
        if self.cluster is self.cluster.world.given:
            self.uses.clear()
