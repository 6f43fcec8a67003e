"""What may come of mishaps: with which codes a run may end, by when, and what never may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mishaps import plan as p

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mishaps.plan import Mishap

DONE = 7
"""The job's own code where it is left in peace."""
JOB_SAW_A_LOSS = 9
"""The job's own code where one of its actors died."""
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
"""From the last mishap to everybody's end: node grace, stop, the second pause, the wait for
workers, and what an attempt takes to boot, be submitted and be told on a loaded machine."""
MOST_DEATHS = 3
"""After so many deaths within ten minutes an agent is not started again."""


class Beat(NamedTuple):
    """From when to when one process of an attempt was seen alive (time.monotonic())."""

    attempt: int
    place: str
    first: float
    last: float


def loses(one: Mishap) -> bool:
    """Say whether a mishap may cost an attempt: nodes, or Ray on them, may be taken for lost."""
    if one.kind == p.STOP:
        return one.what not in {p.REWARD, p.DASHBOARD, p.DRIVER}
    return one.kind == p.CUT or (
        one.kind == p.KILL and one.what in {p.POD, p.GCS, p.RAYLET, p.DASHBOARD}
    )


def head_codes(done: Sequence[Mishap], began: float | None) -> frozenset[int]:
    """Return with what the head may end after these mishaps; the job began so late, or never."""
    may = {DONE}
    lost = any(map(loses, done))
    if lost:
        may |= {75, JOB_SAW_A_LOSS}
    slow = {p.REWARD, p.DASHBOARD}  # what has to be started again, or waited for, before the job
    if any(loses(one) or one.what in slow for one in done if began is None or one.at <= began):
        may.add(69)  # it never came up in time
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
    done: Sequence[Mishap], pod: int, head: int | None, began: float | None
) -> frozenset[int]:
    """Return with what a worker may end, whose head ended with this code (None: it never did).

    A head whose pod was killed as it left may have told its workers an end: the pod that is started
    again begins another run, and ends for want of workers.
    """
    began_anew = any((o.kind, o.what, o.pod) == (p.KILL, p.POD, p.HEAD) for o in done)
    may = head_codes(done, began) if head is None or began_anew else {head}
    if any(map(loses, done)):
        may = {*may, 75, 69}  # its own cause is nearer: a head that it lost, or could not join
    return frozenset({*may, 70} if too_often(done, pod) else may)


def too_often(done: Sequence[Mishap], pod: int) -> bool:
    """Say whether a pod's agent was killed more often than it is started again."""
    kills = sum((o.kind, o.what, o.pod) == (p.KILL, p.AGENT, pod) for o in done)
    return kills > MOST_DEATHS


def wrong_ends(
    done: Sequence[Mishap], codes: Mapping[int, int | None], began: float | None
) -> list[str]:
    """Say which pods ended otherwise than they may; those that were killed for good have None."""
    head = codes[p.HEAD]
    may = {p.HEAD: head_codes(done, began)}
    may |= {pod: worker_codes(done, pod, head, began) for pod in codes if pod != p.HEAD}
    return [
        f"pod{pod} ended with {code}, where it may with {', '.join(map(str, sorted(may[pod])))}"
        for pod, code in codes.items()
        if code is not None and code not in may[pod]
    ]


def wrong_attempts(done: Sequence[Mishap], beats: Sequence[Beat]) -> list[str]:
    """Say where attempts were too many, or lived side by side."""
    numbers = sorted({beat.attempt for beat in beats})
    problems = []
    most = RETRIES + 1 if any(map(loses, done)) else 1
    if numbers and numbers[-1] > most:
        problems.append(f"attempt {numbers[-1]} was made, where {most} may be")
    for number in numbers[1:]:
        before = [beat for beat in beats if beat.attempt < number]
        first = min(beat.first for beat in beats if beat.attempt == number)
        problems += [
            f"attempt {beat.attempt} lived on in {beat.place} for {beat.last - first:.1f} s beside "
            f"attempt {number}"
            for beat in before
            if beat.last > first
        ]
    return problems
