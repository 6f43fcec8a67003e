"""Logging of waits: on a change and at intervals; every wait is recorded."""

from __future__ import annotations

from agent.decisions.shared import Wait
from agent.record.events import Waited, WaitLog, WaitsOver


class Told:
    """A logger of waits, with its log lines and records; `is_drawn` as on a terminal."""

    def __init__(self, *, is_drawn: bool = False) -> None:
        self.said: list[str] = []
        self.in_file: list[str] = []
        self.drawn: list[str] = []
        self.recorded: list[Waited | WaitsOver] = []
        self._is_drawn = is_drawn
        self._teller = WaitLog(self.recorded.append, self._say, self._draw)

    def _say(self, sentence: str, level: str) -> None:
        (self.in_file if level == "debug" else self.said).append(sentence)

    def _draw(self, sentence: str) -> bool:
        self.drawn.append(sentence)
        return self._is_drawn

    def tell(self, now: float, *waits: Wait) -> list[str]:
        """Update the waits; return the log lines."""
        self.said.clear()
        self._teller.update(waits, now)
        return self.said.copy()

    def patience(self, deadline: float | None, now: float) -> float | None:
        """Return how long it can do without being called."""
        return self._teller.next_due(deadline, now)


HEAD = Wait("head", "the head pod0", 600.0, "connection refused for 1 s")
LATER = Wait("head", "the head pod0", 600.0, "connection refused for 9 s")
OTHER = Wait("head", "the head pod0", 600.0, "no address for pod0")


def test_a_wait_that_goes_on_is_logged_less_and_less() -> None:
    """After 15 s, after one minute, then every five: the newest evidence, and the time left."""
    recorder = Told()
    lines = {now: recorder.tell(now, HEAD if now < 10 else LATER) for now in map(float, range(900))}
    said = "waiting for the head pod0, connection refused for 9 s"
    left = {15.0: "9 min 45 s", 60.0: "9 min", 360.0: "4 min", 660.0: "0 s"}
    found = {now: line[0] for now, line in lines.items() if line}
    assert found == {now: f"{said} ({time} left)" for now, time in left.items()}
    assert HEAD.is_over(600.0)
    assert not HEAD.is_over(599.9)


def test_other_evidence_is_logged_but_not_in_a_flood() -> None:
    """What changes while a wait is logged is said at most every 15 s."""
    recorder = Told()
    assert [bool(recorder.tell(now, OTHER)) for now in (0.0, 5.0, 15.0)] == [False, False, True]
    assert recorder.tell(20.0, HEAD) == []
    said = "waiting for the head pod0, connection refused for 1 s (9 min 30 s left)"
    assert recorder.tell(30.0, HEAD) == [said]
    assert recorder.tell(32.0, LATER) == []


def test_the_file_has_each_wait_at_once() -> None:
    """From the start, again on a change after two seconds, and every half minute."""
    recorder = Told()
    first = "waiting for the head pod0, connection refused for 1 s (10 min left)"
    recorder.tell(0.0, HEAD)
    assert recorder.in_file == [first]
    recorder.tell(1.0, OTHER)
    assert recorder.in_file == [first]
    recorder.tell(2.0, OTHER)
    assert len(recorder.in_file) == 2
    recorder.tell(31.0, OTHER)
    assert len(recorder.in_file) == 2
    recorder.tell(33.0, OTHER)
    assert len(recorder.in_file) == 3


def test_a_terminal_has_one_line_for_all_waits() -> None:
    """It is drawn again each second, and erased at the end; nothing else is logged."""
    recorder = Told(is_drawn=True)
    reward = Wait("reward server", "reward server", 300.0)
    recorder.tell(0.0, HEAD)
    assert recorder.patience(None, 0.0) == 1.0
    recorder.tell(16.0, LATER, reward)
    recorder.tell(17.0)
    assert recorder.drawn == [
        "waiting 0 s for the head pod0, connection refused for 1 s",
        "waiting 16 s for the head pod0, connection refused for 9 s; reward server",
        "",
    ]
    assert recorder.said == []
    assert recorder.patience(None, 17.0) is None


def test_it_requests_a_call_for_its_next_line() -> None:
    """Where no event comes, its own times do: the next line's, or those of news held back."""
    recorder = Told()
    recorder.tell(0.0, HEAD)
    assert recorder.patience(600.0, 0.5) == 14.5
    assert recorder.patience(7.0, 0.5) == 6.5
    recorder.tell(1.0, OTHER)
    assert recorder.patience(600.0, 1.0) == 1.0
    assert recorder.patience(600.0, 2.5) == 0.0
    recorder.tell(2.5, OTHER, Wait("reward server", "reward server", 300.0))
    assert recorder.patience(None, 2.5) == 12.5
    recorder.tell(31.0, Wait("node", "a reply from the head pod0", 60.0, is_following=True))
    assert recorder.patience(60.0, 31.0) == 29.0
    assert recorder.patience(None, 31.0) is None


def test_each_wait_has_its_own_clock() -> None:
    """A second wait is logged 15 s after its own start."""
    recorder = Told()
    recorder.tell(0.0, HEAD)
    reward = Wait("reward server", "reward server", 300.0)
    recorder.tell(10.0, HEAD, reward)
    assert len(recorder.tell(15.0, HEAD, reward)) == 1
    assert recorder.tell(25.0, HEAD, reward) == ["waiting for reward server (4 min 35 s left)"]


def test_a_wait_that_returns_begins_anew() -> None:
    """One that was over and begins again is in the file at once, and logged after 15 s."""
    recorder = Told()
    recorder.tell(0.0, HEAD)
    recorder.tell(1.0)
    recorder.tell(2.0, HEAD)
    assert len(recorder.in_file) == 2
    assert recorder.tell(16.0, HEAD) == []
    assert len(recorder.tell(17.0, HEAD)) == 1


def test_following_is_not_logged() -> None:
    """Watching a joined worker or a running job is not logged."""
    recorder = Told()
    following = Wait("node", "a reply from the head pod0", 60.0, "running", is_following=True)
    assert recorder.tell(0.0, following) == []
    assert recorder.tell(30.0, following) == []
    assert recorder.in_file == []


def test_a_wait_and_its_end_are_recorded() -> None:
    """The record has each wait from its start, its changes, and its end."""
    recorder = Told()
    for now, waits in ((0.0, (HEAD,)), (1.0, (HEAD,)), (2.0, (OTHER,)), (3.0, ())):
        recorder.tell(now, *waits)
    assert recorder.recorded == [
        Waited("the head pod0", 600.0, "connection refused for 1 s"),
        Waited("the head pod0", 600.0, "no address for pod0"),
        WaitsOver(("the head pod0",)),
    ]


def test_expensive_evidence_is_read_rarely() -> None:
    """However many reports come, all workers are looked at every two seconds at most."""
    checks = 0

    def look() -> str:
        nonlocal checks
        checks += 1
        return f"{checks} of 9 joined" if checks < 3 else "all joined"

    recorder, wait = Told(), Wait("workers", "workers", 600.0, look)
    for step in range(80):
        recorder.tell(step * 0.05, wait)
    assert checks == 2
    recorder.tell(4.0, wait)
    assert recorder.in_file[-1] == "waiting for workers, all joined (9 min 56 s left)"
