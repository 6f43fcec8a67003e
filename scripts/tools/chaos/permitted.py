"""The permitted results of faults: exit codes, and attempts one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tools.chaos.faults import AGENT, HEAD, KILL, POD, REWARD, Cost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.chaos.faults import Fault

DONE, JOB_SAW_A_LOSS = 7, 9
"""The job's exit codes: undisturbed, and if one of its actors is lost."""
KILLED = 137
RETRIES = 2
MOST_DEATHS = 3
"""A parent starts no agent again, and an agent no service, after this many within ten minutes."""


class Beat(NamedTuple):
    """The period in which one process of an attempt wrote timestamps."""

    attempt: int
    place: str
    first: float
    last: float


def head_codes(faults: Sequence[Fault], began: float | None) -> set[int]:
    """Return the permitted exit codes of the head; the job began at a time, or never."""
    costs = {fault.kind.cost for fault in faults}
    early = {fault.kind.cost for fault in faults if began is None or fault.at <= began}
    codes = {DONE}
    if Cost.ATTEMPT in costs:
        codes |= {75, JOB_SAW_A_LOSS}
    if Cost.ACTOR in costs:
        codes.add(JOB_SAW_A_LOSS)
    if Cost.DRIVER in costs:
        codes.add(KILLED)
    if early & {Cost.ATTEMPT, Cost.TIME} or _kills(faults, REWARD, HEAD) > MOST_DEATHS:
        codes.add(69)
    if _kills(faults, AGENT, HEAD) > MOST_DEATHS:
        codes.add(70)
    return codes


def worker_codes(
    faults: Sequence[Fault], pod: int, head: int | None, began: float | None
) -> set[int]:
    """Return a worker's permitted exit codes, given its head's (None: it never ended).

    A head whose pod is killed as it exits may have sent its workers a verdict: the restarted pod
    begins another run, which ends for lack of workers.
    """
    is_heads = head is not None and not _kills(faults, POD, HEAD)
    codes = {head} if head is not None and is_heads else head_codes(faults, began)
    if _may_lose(faults):
        codes |= {75, 69}  # its own cause comes first: it lost the head, or could not join
    if _kills(faults, AGENT, pod) > MOST_DEATHS:
        codes.add(70)
    return codes


def wrong_codes(
    faults: Sequence[Fault], codes: Mapping[int, int | None], began: float | None
) -> list[str]:
    """Report each pod that ended with another code; None is a pod that was killed for good."""
    head = codes[HEAD]
    permitted = {pod: worker_codes(faults, pod, head, began) for pod in codes}
    permitted[HEAD] = head_codes(faults, began)
    return [
        f"pod{pod} ended with {code}, permitted: {', '.join(map(str, sorted(permitted[pod])))}"
        for pod, code in codes.items()
        if code is not None and code not in permitted[pod]
    ]


def wrong_attempts(faults: Sequence[Fault], beats: Sequence[Beat]) -> list[str]:
    """Report too many attempts, and attempts that overlapped."""
    numbers = sorted({beat.attempt for beat in beats})
    problems = []
    most = RETRIES + 1 if _may_lose(faults) else 1
    if numbers and numbers[-1] > most:
        problems.append(f"attempt {numbers[-1]} was made, permitted: {most}")
    for number in numbers:
        first = min(beat.first for beat in beats if beat.attempt == number)
        problems += [
            f"attempt {beat.attempt} ran on in {beat.place} for {beat.last - first:.1f} s beside "
            f"attempt {number}"
            for beat in beats
            if beat.attempt < number and beat.last > first
        ]
    return problems


def _may_lose(faults: Sequence[Fault]) -> bool:
    return any(fault.kind.cost is Cost.ATTEMPT for fault in faults)


def _kills(faults: Sequence[Fault], target: str, pod: int) -> int:
    return sum(
        (fault.kind.action, fault.kind.target, fault.pod) == (KILL, target, pod) for fault in faults
    )
