"""What follows from RunPod's answers: the next request, and the pause before it."""

from __future__ import annotations

import pytest

from agent.runpod.pod_stop import PodAnswer, PodState, PodStop, after_answer

READ = False
ACT = True
RUNNING = PodState("RUNNING", ("stop", "restart", "terminate"), 0.44, locked=False)

ROWS: list[tuple[PodStop, PodAnswer, bool, bool]] = [
    # state, answer, next request, whether it is accepted
    (PodStop("stop"), PodAnswer(200, pod=RUNNING), ACT, False),
    (PodStop("stop", ACT), PodAnswer(200, pod=RUNNING), READ, True),
    (PodStop("terminate", ACT), PodAnswer(204), READ, True),
    (PodStop("stop", ACT), PodAnswer(409, "wrong status"), READ, False),
    (PodStop("stop"), PodAnswer(409, "?"), READ, False),
    (PodStop("terminate", accepted=True), PodAnswer(404), READ, True),
    (PodStop("terminate"), PodAnswer(404), READ, False),
    (PodStop("stop", accepted=True), PodAnswer(200, pod=RUNNING), ACT, True),
]


@pytest.mark.parametrize(("stop", "answer", "acts", "accepted"), ROWS)
def test_what_follows_from_an_answer(
    stop: PodStop, answer: PodAnswer, *, acts: bool, accepted: bool
) -> None:
    """Each answer leads to one next request."""
    after, _ = after_answer(stop, answer)
    assert (after.acts, after.accepted) == (acts, accepted)


def test_pauses_grow() -> None:
    """From one second to one minute."""
    stop = PodStop("stop")
    pauses = []
    for _ in range(8):
        stop, _line = after_answer(stop, PodAnswer(503))
        pauses.append(stop.pause)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
