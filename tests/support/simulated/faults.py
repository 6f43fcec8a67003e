"""The faults of a world: each one by the name that a setup uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.simulated.rays import Raylet
from support.simulated.setups import SKEWS

if TYPE_CHECKING:
    from support.simulated.machines import Machine
    from support.simulated.programs import Share
    from support.simulated.virtual import Life
    from support.simulated.world import World


class Faults:
    """Injects faults into a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def happens(self, name: str, index: int) -> None:
        """Inject a fault; the index selects the target, or the variant."""
        self._world.note("FAULT", f"{name} {index}")
        getattr(self, f"_{name}")(index)

    def _disturb(self, *machines: Machine) -> None:
        for one in machines:
            self._world.disturbed[one.label] = self._world.now

    def _worker(self, index: int) -> Machine:
        workers = self._world.workers
        return workers[index % len(workers)]

    def _kill_head_agent(self, _index: int) -> None:
        self._disturb(self._world.head)
        self._world.head.kill_agent()

    def _kill_worker_agent(self, index: int) -> None:
        self._disturb(self._worker(index))
        self._worker(index).kill_agent()

    def _cut(self, machine: Machine) -> None:
        self._disturb(machine)
        self._world.network.cut_off.add(machine.label)
        self._world.network.notice_cuts()
        for one in self._world.machines:
            raylet = one.raylet
            if raylet is not None and machine in {one, raylet.cluster.machine}:
                raylet.cluster.missed(raylet, 17.0)
            if one.share is not None and machine is one:
                self._world.later(self._world.random.uniform(15, 25), self._share_is_cut, one.share)

    def _share_is_cut(self, share: Share) -> None:
        if share.lives and share.machine.label in self._world.network.cut_off:
            share.group.breaks(share)

    def _cut_worker(self, index: int) -> None:
        self._cut(self._worker(index))

    def _cut_head(self, _index: int) -> None:
        self._cut(self._world.head)

    def _heal(self, _index: int) -> None:
        self._disturb(*self._world.machines)
        self._world.network.cut_off.clear()
        self._world.network.mute.clear()
        for one in self._world.machines:
            raylet = one.raylet
            if raylet is not None and raylet.is_dead_for_gcs:
                self._world.later(1.0, raylet.end, "it was marked dead", at_once=True)

    def _worker_dies(self, index: int) -> None:
        self._disturb(self._worker(index))
        self._worker(index).die()

    def _worker_blinks(self, index: int) -> None:
        machine = self._worker(index)
        self._worker_dies(index)
        pause = self._world.random.choice((3.0, 20.0, 50.0))
        self._world.later(pause, machine.come_back, keeps_disk=self._world.random.random() < 0.5)

    def _worker_is_replaced(self, index: int) -> None:
        self._worker_dies(index)
        self._world.later(self._world.random.choice((5.0, 30.0)), self._machine_comes)

    def _machine_comes(self) -> None:
        machine = self._world.add_machine()
        self._disturb(machine)
        machine.boot()

    def _raylet_dies(self, index: int) -> None:
        raylet = self._worker(index).raylet
        if raylet is not None:
            raylet.end("exit code 1", at_once=False)

    def _heads_ray_dies(self, _index: int) -> None:
        if self._world.head.cluster is not None:
            self._disturb(*self._world.machines)
            self._world.head.cluster.end()

    def _head_restarts(self, _index: int) -> None:
        self._back_after(keeps_disk=True)

    def _head_loses_its_disk(self, _index: int) -> None:
        self._back_after(keeps_disk=False)

    def _back_after(self, *, keeps_disk: bool) -> None:
        if self._world.head.code is None and self._world.head.is_on:
            self._disturb(*self._world.machines)
            self._world.head.die()
            pause = self._world.random.uniform(2, 20)
            self._world.later(pause, self._head_is_back, self._world.head, keeps_disk=keeps_disk)

    def _head_is_back(self, machine: Machine, *, keeps_disk: bool) -> None:
        self._disturb(*self._world.machines)
        if not keeps_disk:  # another host, with its own clock
            machine.clock.skew = self._world.random.uniform(*SKEWS)
        machine.come_back(keeps_disk=keeps_disk)

    def _mute_ray(self, index: int) -> None:
        cluster = self._world.given or self._world.head.cluster
        if cluster is not None:
            cluster.mute_until = self._world.now + (15.0, 60.0, 130.0, 200.0)[index]

    def _ray_hangs(self, index: int) -> None:
        """Stop a part of the head's Ray that a running job does not need."""
        head = self._world.head
        if head.cluster is not None and head.cluster.lives:
            head.hang("its dashboard (pid 7) is stopped")
            self._world.later((5.0, 20.0, 50.0, 50.0)[index], head.hang, "")

    def _job_fails(self, _index: int) -> None:
        cluster = self._world.given or self._world.head.cluster
        for job in [] if cluster is None else [*cluster.jobs.values()]:
            job.finish("FAILED", 9)

    def _share_fails(self, index: int) -> None:
        shares = [one.share for one in self._world.machines if one.share is not None]
        if shares:
            shares[index % len(shares)].fails(9)

    def _bad_network(self, _index: int) -> None:
        self._world.disturbed[""] = self._world.now + 100.0
        self._world.network.is_bad = True
        self._world.later(40.0, self._good_network, 0)

    def _good_network(self, _index: int) -> None:
        self._world.network.is_bad = False

    def _doubles(self, _index: int) -> None:
        self._world.network.doubles = not self._world.network.doubles

    def _service_dies(self, index: int) -> None:
        services = [one for machine in self._world.machines for one in machine.services]
        if services:
            services[index % len(services)].end(1)

    def _slow_disks(self, _index: int) -> None:
        self._world.disks_are_slow = not self._world.disks_are_slow

    def _full_disks(self, _index: int) -> None:
        self._world.disks_are_full = True

    def _pause_agent(self, index: int) -> None:
        """Let an agent take no step for a while, as a frozen container does."""
        machine = self._world.machines[index % len(self._world.machines)]
        if machine.agent is not None:
            life = machine.agent.life
            life.is_paused = True
            self._disturb(machine)
            pause = self._world.random.choice((2.0, 6.0, 20.0, 45.0, 90.0))
            self._world.later(pause, self._resume, life)

    def _resume(self, life: Life) -> None:
        self._disturb(life.machine)
        life.resume()

    def _dns_fails(self, index: int) -> None:
        """Let DNS give no answer for a while, or another one: that there is no such name."""
        network = self._world.network
        network.dns_error = ("no answer", "no answer", "no such name")[index % 3]
        self._world.disturbed[""] = self._world.now + 30.0
        self._world.later(self._world.random.choice((3.0, 20.0, 40.0)), self._dns_answers)

    def _dns_answers(self) -> None:
        self._world.network.dns_error = ""

    def _one_way(self, index: int) -> None:
        """Let a worker's packets get through to no machine, though others reach it."""
        self._disturb(self._worker(index))
        self._world.network.mute.add(self._worker(index).label)
        self._world.network.notice_cuts()

    def _failing_writes(self, index: int) -> None:
        """Let the next writes to a machine's disk fail."""
        machine = self._world.machines[index % len(self._world.machines)]
        machine.failing_writes += self._world.random.choice((1, 2, 5))

    def _clock_jumps(self, index: int) -> None:
        machine = self._world.machines[index % len(self._world.machines)]
        machine.clock.skew += self._world.random.choice((-3600.0, -30.0, 30.0, 3600.0))

    def _second_head(self, index: int) -> None:
        """Let the platform start a second head, because it takes the first one for lost."""
        if (
            self._world.former_heads
            or self._world.head.code is not None
            or not self._world.head.is_on
        ):
            return
        self._disturb(*self._world.machines)
        self._world.has_two_heads = True
        shared = index % 2 == 0
        if index < 2:
            self._cut(self._world.head)
        former = self._world.head
        self._world.former_heads = (former,)
        self._world.head = self._world.add_machine(former.disk if shared else None)
        self._world.head.name = former.name
        self._world.head_ip = self._world.head.ip
        self._world.later(self._world.random.uniform(2, 20), self._world.head.boot)

    def _node_dies(self, index: int) -> None:
        raylet = self._worker(index).raylet
        if raylet is not None:
            raylet.machine.is_on = False
            raylet.end("its node is gone", at_once=False)

    def _node_blinks(self, index: int) -> None:
        self._node_dies(index)
        self._world.later(
            self._world.random.choice((20.0, 50.0)), self.starts_ray, self._worker(index)
        )

    def starts_ray(self, machine: Machine) -> None:
        """Let the owner of a given Ray start it on a node."""
        machine.is_on = True
        if self._world.given is not None and machine.raylet is None:
            machine.raylet = Raylet(self._world.given, machine)

    def _stop_worker(self, index: int) -> None:
        machine = self._worker(index)
        self._disturb(machine)
        machine.signal(15)
        if "AGENT_NOTICE_SIGNAL" in self._world.setup.environ and index % 2:
            self._world.later(40.0, machine.start_again, keeps_disk=bool(index % 3))

    def _stop_head(self, index: int) -> None:
        if index == 0:
            self._world.head.signal(15)
