"""Logging of waits: on a change and at intervals; every wait is recorded."""

from __future__ import annotations

from agent.base.text import listed
from agent.decisions.shared import Wait
from agent.record.events import Waited, WaitLog, WaitsOver


class Told:
    """A logger of waits, with its log lines and records."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.recorded: list[Waited | WaitsOver] = []
        self._teller = WaitLog(self.recorded.append, self.said.append)

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


def test_a_wait_is_logged_at_once_then_every_half_minute() -> None:
    """The first line comes at once; the same evidence again only after 30 s."""
    told = Told()
    first = "waiting for the head pod0, connection refused for 1 s (600 s left)"
    assert told.tell(0.0, HEAD) == [first]
    assert told.tell(10.0, LATER) == []
    assert told.tell(27.9, LATER) == []
    again = "waiting for the head pod0, connection refused for 9 s (570 s left)"
    assert told.tell(30.0, LATER) == [again]
    assert told.tell(31.0, LATER) == []


def test_new_evidence_is_logged_soon_but_not_in_a_flood() -> None:
    """Other evidence is logged at most every two seconds."""
    told = Told()
    told.tell(0.0, HEAD)
    assert told.tell(1.0, OTHER) == []
    assert len(told.tell(2.0, OTHER)) == 1
    assert told.tell(3.0, HEAD) == []
    assert len(told.tell(4.0, HEAD)) == 1


def test_it_requests_a_call_for_its_next_line() -> None:
    """Where no event comes, its own times do: the reminder's, or those of news held back."""
    told = Told()
    told.tell(0.0, HEAD)
    assert told.patience(600.0, 0.5) == 29.5
    assert told.patience(7.0, 0.5) == 6.5
    told.tell(1.0, OTHER)
    assert told.patience(600.0, 1.0) == 1.0
    assert told.patience(600.0, 2.5) == 0.0
    told.tell(2.5, OTHER, Wait("reward server", "reward server", 300.0))
    assert told.patience(None, 2.5) == 30.0
    told.tell(31.0, Wait("node", "a reply from the head pod0", 60.0, is_following=True))
    assert told.patience(60.0, 31.0) == 29.0
    assert told.patience(None, 31.0) is None


def test_each_wait_has_its_own_clock() -> None:
    """A second wait is logged at once, independent of the first."""
    told = Told()
    told.tell(0.0, HEAD)
    reward = Wait("reward server", "reward server", 300.0)
    assert told.tell(1.0, HEAD, reward) == ["waiting for reward server (299 s left)"]


def test_a_wait_that_returns_is_logged_again() -> None:
    """A wait that was over and begins again is logged at once."""
    told = Told()
    told.tell(0.0, HEAD)
    assert told.tell(1.0) == []
    assert len(told.tell(2.0, HEAD)) == 1


def test_following_is_not_logged() -> None:
    """Watching a joined worker or a running job is not logged."""
    told = Told()
    following = Wait("node", "a reply from the head pod0", 60.0, "running", is_following=True)
    assert told.tell(0.0, following) == []


def test_a_logged_wait_and_its_end_are_recorded() -> None:
    """The record has each line with its evidence, and the end of each wait."""
    told = Told()
    for now, waits in ((0.0, (HEAD,)), (1.0, (HEAD,)), (2.0, (OTHER,)), (3.0, ())):
        told.tell(now, *waits)
    assert told.recorded == [
        Waited("the head pod0", 600.0, "connection refused for 1 s"),
        Waited("the head pod0", 600.0, "no address for pod0"),
        WaitsOver(("the head pod0",)),
    ]


def test_expensive_evidence_is_read_rarely() -> None:
    """However many reports come, all workers are looked at every two seconds at most."""
    looks = 0

    def look() -> str:
        nonlocal looks
        looks += 1
        return f"{looks} of 9 joined" if looks < 3 else "all joined"

    told, wait = Told(), Wait("workers", "workers", 600.0, look)
    for step in range(80):
        told.tell(step * 0.05, wait)
    assert looks == 2
    told.tell(4.0, wait)
    assert told.said == ["waiting for workers, all joined (596 s left)"]


def test_a_wait_that_is_over_has_no_time_left() -> None:
    """The time left never reads negative."""
    assert HEAD.is_over(600.0)
    assert not HEAD.is_over(599.9)
    assert HEAD.sentence(700.0).endswith("(0 s left)")


def test_names_are_joined_as_a_person_would() -> None:
    """None, one, two, three."""
    lists: list[tuple[str, ...]] = [(), ("1",), ("1", "2"), ("1", "2", "3")]
    assert [listed(names) for names in lists] == ["", "1", "1 and 2", "1, 2 and 3"]
