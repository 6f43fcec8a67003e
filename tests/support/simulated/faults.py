"""The faults of a world: each one by the name that a setup uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.record.run_record import RUN_FILE
from support.simulated.rays import Raylet
from support.simulated.setups import SKEWS

if TYPE_CHECKING:
    from support.simulated.machines import Machine
    from support.simulated.programs import Share
    from support.simulated.virtual import Life
    from support.simulated.world import World


_OF_ANY_MACHINE = {"pause_agent", "torn_writes", "link_blinks", "one_way_blinks"}
_OF_ONE_WORKER = {
    *("worker_dies", "worker_blinks", "worker_moves", "worker_is_replaced"),
    *("cut_worker", "one_way", "stop_worker"),
}
_BORNE_MUTE = 70.0
"""Seconds for which Ray may return no status of a job."""
_KNOWN_READY = 12.0
"""Seconds after which an agent has found out that a service is ready."""


class Faults:
    """Injects faults into a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def happens(self, name: str, index: int) -> None:
        """Inject a fault; the index selects the target, or the variant."""
        self._world.note("FAULT", f"{name} {index}")
        is_borne = name in _OF_ONE_WORKER and self._world.group_judges.may_be_lost(
            self._worker(index)
        )
        self._world.harms.happens(name, is_borne=is_borne)
        getattr(self, f"_{name}")(index)

    def of_decision(self, machine: Machine, action: str) -> None:
        """Inject the faults that follow a decision of an agent: at its action, or some time later.

        At once means before the action, so before what it records.
        """
        triggers = [one for one in self._world.setup.triggers if one.action == action]
        if not triggers:
            return
        place = self._world.counted(machine.label, action)
        for one in triggers:
            if (one.label, one.number) != place:
                continue
            number = self._world.machines.index(machine)
            index = number if one.fault in _OF_ANY_MACHINE else max(0, number - 1)
            if one.after is None:
                self.happens(one.fault, index)
            else:
                self._world.later(one.after, self.happens, one.fault, index)

    def _disturb(self, *machines: Machine) -> None:
        for one in machines:
            self._world.disturbed[one.label] = self._world.now

    def _machine(self, index: int) -> Machine:
        """Return any machine, a head too."""
        return self._world.machines[index % len(self._world.machines)]

    def _agents(self) -> list[Machine]:
        return [one for one in self._world.machines if one.agent is not None]

    def _worker(self, index: int) -> Machine:
        workers = self._world.workers
        return workers[index % len(workers)]

    def _kill_head_agent(self, _index: int) -> None:
        self._disturb(self._world.head)
        self._world.head.kill_agent()

    def _kill_worker_agent(self, index: int) -> None:
        self._disturb(self._worker(index))
        self._worker(index).kill_agent()

    def _kill_head_agent_twice(self, index: int) -> None:
        """Kill also the agent that follows, as it starts or while it takes over."""
        self._kill_head_agent(0)
        pause = self._world.random.uniform(0.3, (3.5, 6.0, 12.0, 25.0)[index % 4])
        self._world.later(pause, self._kill_head_agent, 0)

    def _cut(self, machine: Machine) -> None:
        self._world.network.cut_off.add(machine.label)
        self._is_cut(machine)

    def _is_cut(self, machine: Machine) -> None:
        """Let those notice that a machine no longer exchanges packets with the others."""
        self._disturb(machine)
        machine.severed_at = self._world.now
        self._world.network.notice_cuts()
        for one in self._world.machines:
            raylet = one.raylet
            if raylet is not None and machine in {one, raylet.cluster.machine}:
                raylet.cluster.missed(raylet, 17.0)
            if one.share is not None and machine is one:
                self._world.later(self._world.random.uniform(15, 25), self._share_is_cut, one.share)

    def _share_is_cut(self, share: Share) -> None:
        if share.lives and not self._world.network.reaches_others(share.machine):
            share.group.breaks(share)

    def _cut_worker(self, index: int) -> None:
        self._cut(self._worker(index))

    def _cut_head(self, _index: int) -> None:
        self._cut(self._world.head)

    def _heal(self, _index: int) -> None:
        self._disturb(*self._world.machines)
        self._world.network.restore(*self._world.machines)
        self._end_dead_raylets()

    def _end_dead_raylets(self) -> None:
        """A raylet that GCS gave up ends as it reaches GCS again."""
        for one in self._world.machines:
            raylet = one.raylet
            if raylet is not None and raylet.is_dead_for_gcs:
                self._world.later(1.0, raylet.end, "it was marked dead", at_once=True)

    def _link_blinks(self, index: int) -> None:
        """Cut a machine's link for ten seconds at most; the head's, too."""
        machine = self._machine(index)
        self._cut(machine)
        self._blink_ends(machine)

    def _blink_ends(self, machine: Machine) -> None:
        seconds = self._world.random.uniform(0.5, 10.0)
        self._world.harms.silence(machine, seconds)
        self._world.later(seconds, self._restore, machine)

    def _restore(self, machine: Machine) -> None:
        self._disturb(machine)
        self._world.network.restore(machine)
        self._end_dead_raylets()

    def _one_way(self, index: int) -> None:
        """Lose all packets from a worker, or all to it: a request may arrive without its answer."""
        self._cut_one_way(self._worker(index), index)

    def _one_way_blinks(self, index: int) -> None:
        """Do so for ten seconds at most, also to the head."""
        machine = self._machine(index)
        self._cut_one_way(machine, self._world.random.randrange(2))
        self._blink_ends(machine)

    def _cut_one_way(self, machine: Machine, direction: int) -> None:
        network = self._world.network
        lost = network.mute if direction % 2 else network.deaf
        lost.add(machine.label)
        self._is_cut(machine)

    def _worker_dies(self, index: int) -> None:
        self._disturb(self._worker(index))
        self._worker(index).die()

    def _worker_blinks(self, index: int) -> None:
        machine = self._worker(index)
        self._worker_dies(index)
        pause = self._world.random.choice((3.0, 20.0, 50.0))
        machine.returns = True
        self._world.later(pause, machine.come_back, keeps_disk=self._world.random.random() < 0.5)

    def _worker_moves(self, index: int) -> None:
        """Start a worker's pod elsewhere, under its name with another address."""
        machine = self._worker(index)
        self._worker_dies(index)
        machine.returns = True
        pause = self._world.random.choice((1.0, 5.0, 20.0, 50.0))
        ip = self._world.new_ip()
        self._world.later(pause, machine.come_back, keeps_disk=index % 2 == 0, ip=ip)

    def _addresses_swap(self, index: int) -> None:
        """Start the pods of two workers again, each with the other's address."""
        one, other = self._worker(index), self._worker(index + 1)
        for machine, ip in ((one, other.ip), (other, one.ip)):
            self._disturb(machine)
            machine.die()
            machine.ip = ip  # at once: another fault may start the pod again first
            machine.returns = True
            pause = self._world.random.uniform(2.0, 12.0)
            self._world.later(pause, machine.come_back, keeps_disk=True)

    def _worker_is_replaced(self, index: int) -> None:
        self._worker_dies(index)
        group = self._worker(index).group
        self._world.later(self._world.random.choice((5.0, 30.0)), self._machine_comes, group)

    def _machine_comes(self, group: str) -> None:
        machine = self._world.add_machine()
        machine.group = group
        self._disturb(machine)
        machine.boot()

    def _raylet_dies(self, index: int) -> None:
        raylet = self._worker(index).raylet
        if raylet is not None:
            self._disturb(raylet.machine)
            raylet.end("exit code 1", at_once=False)

    def _heads_ray_dies(self, _index: int) -> None:
        if self._world.head.cluster is not None:
            self._disturb(*self._world.machines)
            self._world.head.cluster.end()

    def _head_restarts(self, _index: int) -> None:
        self._back_after(keeps_disk=True)

    def _head_loses_its_disk(self, _index: int) -> None:
        self._back_after(keeps_disk=False)

    def _head_moves(self, index: int) -> None:
        """Start the head's pod with another address, which DNS has at once, or some time later."""
        late = (0.0, 0.0, 5.0, 30.0)[index % 4]
        self._back_after(keeps_disk=index != 1, ip=self._world.new_ip(), dns_is_late=late)

    def _back_after(self, *, keeps_disk: bool, ip: str = "", dns_is_late: float = 0.0) -> None:
        head = self._world.head
        if head.code is None and head.is_on:
            self._disturb(*self._world.machines)
            head.die()
            head.returns = True
            pause = self._world.random.uniform(2, 20)
            back = self._world.later
            back(pause, self._head_is_back, head, keeps_disk=keeps_disk, ip=ip)
            if ip:
                back(pause + dns_is_late, self._dns_has, ip)

    def _dns_has(self, ip: str) -> None:
        self._disturb(*self._world.machines)
        self._world.head_ip = ip

    def _head_is_back(self, machine: Machine, *, keeps_disk: bool, ip: str = "") -> None:
        self._disturb(*self._world.machines)
        if not keeps_disk:  # another host, with its own clock
            machine.clock.skew = self._world.random.uniform(*SKEWS)
            self._world.rules.records_are_lost()
        machine.come_back(keeps_disk=keeps_disk, ip=ip)

    def _mute_ray(self, index: int) -> None:
        cluster = self._world.given or self._world.head.cluster
        if cluster is not None:
            seconds = (15.0, 60.0, 130.0, 200.0)[index]
            if seconds > _BORNE_MUTE or self._world.now < cluster.mute_until + _BORNE_MUTE:
                self._world.harms.add("Ray returns no status for long")
            cluster.mute_until = self._world.now + seconds

    def _ray_hangs(self, index: int) -> None:
        """Stop a part of the head's Ray that a running job does not need."""
        head = self._world.head
        if head.cluster is not None and head.cluster.lives:
            self._world.harms.repeats("Ray hangs", most=1, within=600.0)
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

    def _reorders(self, _index: int) -> None:
        """Let some reports arrive long after later ones, also when nobody waits for the reply."""
        self._world.network.reorders = not self._world.network.reorders

    def _service_dies(self, index: int) -> None:
        services = [one for machine in self._world.machines for one in machine.services]
        if services:
            service = services[index % len(services)]
            machine = service.machine
            lived = self._world.now - max(service.ready_at, machine.agent_since)
            if not lived > _KNOWN_READY:  # its agent may not know that it was ready
                self._world.harms.add("a service exits before it is ready")
            self._world.harms.repeats(f"{machine.label} loses a service", most=2, within=700.0)
            service.end(1)

    def _slow_disks(self, _index: int) -> None:
        self._world.disks_are_slow = not self._world.disks_are_slow

    def _full_disks(self, _index: int) -> None:
        self._world.disks_are_full = True

    def _pause_agent(self, index: int) -> None:
        """Let an agent take no step for a while, as a frozen container does."""
        machine = self._world.machines[index % len(self._world.machines)]
        if machine.agent is not None:
            pause = self._world.random.choice((2.0, 6.0, 20.0, 45.0, 90.0))
            self._pause(machine, pause)

    def _pause(self, machine: Machine, seconds: float) -> None:
        assert machine.agent is not None
        life = machine.agent.life
        life.is_paused = True
        self._disturb(machine)
        machine.severed_at = self._world.now
        self._world.harms.silence(machine, seconds)
        self._world.later(seconds, self._resume, life)

    def _pause_all_agents(self, index: int) -> None:
        """Let no agent take a step for a while, as where all machines are suspended."""
        for machine in self._agents():
            self._pause(machine, (2.0, 20.0, 45.0, 90.0)[index % 4])

    def _resume(self, life: Life) -> None:
        self._disturb(life.machine)
        life.machine.severed_at = self._world.now
        life.resume()

    def _dns_fails(self, index: int) -> None:
        """Let DNS give no answer for a while, or another one: that there is no such name."""
        network = self._world.network
        network.dns_error = ("no answer", "no answer", "no such name")[index % 3]
        self._world.disturbed[""] = self._world.now + 30.0
        self._world.later(self._world.random.choice((3.0, 20.0, 40.0)), self._dns_answers)

    def _dns_answers(self) -> None:
        self._world.network.dns_error = ""

    def _failing_writes(self, index: int) -> None:
        """Let the next writes to a machine's disk fail."""
        machine = self._world.machines[index % len(self._world.machines)]
        machine.failing_writes += self._world.random.choice((1, 2, 5))

    def _torn_writes(self, index: int) -> None:
        """Kill an agent amid its next write, after which a part of a file lies on the disk."""
        self._disturb(self._machine(index))
        self._machine(index).torn_writes += 1

    def _full_disk(self, index: int) -> None:
        """Let a machine's disk have no room for a while, or for good."""
        seconds = self._world.random.choice((5.0, 30.0, 100.0, 1e9))
        self._machine(index).full_until = self._world.now + seconds

    def _stalled_disk(self, index: int) -> None:
        """Let no write of a record to a machine's disk end for a while."""
        seconds = self._world.random.choice((2.0, 12.0, 40.0))
        self._machine(index).stalled_until = self._world.now + seconds

    def _workers_disks_fail(self, index: int) -> None:
        """Let the disks of all workers, and of no head, be full for a while, or fail."""
        for machine in self._world.workers:
            if index % 2:
                machine.failing_writes += 3
            else:
                machine.full_until = self._world.now + (20.0, 0.0, 200.0)[index % 3]

    def _torn_record(self, _index: int) -> None:
        """Start the head's pod again with a disk on which run.json is broken off."""
        for path in self._world.head.logs.glob(f"*/{RUN_FILE}"):
            text = path.read_text(encoding="utf-8")
            path.write_text(text[: len(text) // 2], encoding="utf-8")
        self._back_after(keeps_disk=True)

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
        self._world.head.severed_at = self._world.now
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

    def _stop_heads(self, _index: int) -> None:
        """Stop a cluster without a job by hand: each of its heads, as often as it is needed."""
        for head in self._world.heads:
            head.signal(15)
        if any(head.code is None for head in self._world.heads):
            self._world.later(30.0, self._stop_heads, 0)
