"""The permitted results of faults: exit codes, deadlines, and attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tools.chaos import plan as p

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.chaos.plan import InjectedFault

DONE = 7
"""The job's exit code if nothing disturbs it."""
JOB_SAW_A_LOSS = 9
"""The job's exit code if one of its actors is lost."""
KILLED = 137
RETRIES = 2
SETTINGS = {
    "EXPECTED_WORKERS": str(p.PODS - 1),
    "AGENT_JOB_RETRIES": str(RETRIES),
    "AGENT_NODE_GRACE": "10s",
    "AGENT_HEAD_GRACE": "60s",
    "AGENT_WAIT_HEAD": "90s",
    "AGENT_WAIT_WORKERS": "90s",
    "AGENT_REWARD": "builtin",
    "AGENT_WAIT_REWARD": "60s",
}
LATEST = 10.0 + 25.0 + 20.0 + 90.0 + 95.0
"""Seconds from the last fault to the last exit.

The sum of node grace, stop, the second pause, the wait for workers, and the time for an attempt to
boot, be submitted and be reported on a loaded machine.
"""
MOST_DEATHS = 3
"""The parent does not start an agent again after this many crashes within ten minutes."""


class Beat(NamedTuple):
    """The period in which one process of an attempt wrote timestamps (time.monotonic())."""

    attempt: int
    place: str
    first: float
    last: float


def loses(one: InjectedFault) -> bool:
    """Return whether a fault may cost an attempt: nodes, or Ray on them, may count as lost."""
    if one.kind == p.STOP:
        return one.what not in {p.REWARD, p.DASHBOARD, p.DRIVER}
    return one.kind == p.CUT or (
        one.kind == p.KILL and one.what in {p.POD, p.GCS, p.RAYLET, p.DASHBOARD}
    )


def head_codes(done: Sequence[InjectedFault], began: float | None) -> frozenset[int]:
    """Return the permitted exit codes of the head; the job began at a time, or never."""
    may = {DONE}
    lost = any(map(loses, done))
    if lost:
        may |= {75, JOB_SAW_A_LOSS}
    # the time to start something again, or to wait for it, before the job
    slow = {p.REWARD, p.DASHBOARD}
    if any(loses(one) or one.what in slow for one in done if began is None or one.at <= began):
        may.add(69)  # it was never ready in time
    if sum(one.what == p.REWARD for one in done) > MOST_DEATHS:
        may.add(69)
    if any((one.kind, one.what) == (p.KILL, p.DRIVER) for one in done):
        may.add(KILLED)
    if any((one.kind, one.what) == (p.KILL, p.ACTOR) for one in done):
        may.add(JOB_SAW_A_LOSS)
    if too_often(done, p.HEAD):
        may.add(70)
    return frozenset(may)


def worker_codes(
    done: Sequence[InjectedFault], pod: int, head: int | None, began: float | None
) -> frozenset[int]:
    """Return a worker's permitted exit codes, given its head's (None: it never ended).

    A head whose pod is killed as it exits may have sent its workers a verdict: the restarted pod
    begins another run, which ends for lack of workers.
    """
    began_anew = any((o.kind, o.what, o.pod) == (p.KILL, p.POD, p.HEAD) for o in done)
    may = head_codes(done, began) if head is None or began_anew else {head}
    if any(map(loses, done)):
        may = {*may, 75, 69}  # its own cause comes first: it lost the head, or could not join
    return frozenset({*may, 70} if too_often(done, pod) else may)


def too_often(done: Sequence[InjectedFault], pod: int) -> bool:
    """Return whether a pod's agent was killed more often than it is restarted."""
    kills = sum((o.kind, o.what, o.pod) == (p.KILL, p.AGENT, pod) for o in done)
    return kills > MOST_DEATHS


def wrong_ends(
    done: Sequence[InjectedFault], codes: Mapping[int, int | None], began: float | None
) -> list[str]:
    """Report each pod that ended with another code; None is a pod that was killed for good."""
    head = codes[p.HEAD]
    may = {p.HEAD: head_codes(done, began)}
    may |= {pod: worker_codes(done, pod, head, began) for pod in codes if pod != p.HEAD}
    return [
        f"pod{pod} ended with {code}, permitted: {', '.join(map(str, sorted(may[pod])))}"
        for pod, code in codes.items()
        if code is not None and code not in may[pod]
    ]


def wrong_attempts(done: Sequence[InjectedFault], beats: Sequence[Beat]) -> list[str]:
    """Report too many attempts, and attempts that overlapped."""
    numbers = sorted({beat.attempt for beat in beats})
    problems = []
    most = RETRIES + 1 if any(map(loses, done)) else 1
    if numbers and numbers[-1] > most:
        problems.append(f"attempt {numbers[-1]} was made, permitted: {most}")
    for number in numbers[1:]:
        before = [beat for beat in beats if beat.attempt < number]
        first = min(beat.first for beat in beats if beat.attempt == number)
        problems += [
            f"attempt {beat.attempt} ran on in {beat.place} for {beat.last - first:.1f} s beside "
            f"attempt {number}"
            for beat in before
            if beat.last > first
        ]
    return problems
