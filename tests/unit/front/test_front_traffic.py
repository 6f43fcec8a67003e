"""Which member answers no request, by the requests of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.front.front_traffic import FAILED_LEAST, LATELY, WEDGED_LEAST, WEDGED_TIMES, Traffic

if TYPE_CHECKING:
    from agent.front.front_traffic import Flight

A, B = 1, 2


class Requests:
    """A front's traffic, and a clock."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.now = 1000.0
        self.canceled: list[int] = []

    def begin(self, port: int) -> Flight:
        """Send a request to a member."""
        return self.traffic.begin(port, self.now, lambda: self.canceled.append(port))

    def end(self, flight: Flight, *, is_answered: bool = True, is_error: bool = False) -> None:
        """Answer it."""
        self.traffic.end(flight, self.now, is_answered=is_answered, is_error=is_error)

    def answer(self, port: int, seconds: float) -> None:
        """Have a member answer a request that takes so long."""
        flight = self.begin(port)
        self.now += seconds
        self.end(flight)

    @property
    def wedged(self) -> list[int]:
        """The members that are found wedged now."""
        return [port for port, _ in self.traffic.wedged(self.now)]


def test_a_member_that_answers_nothing_while_others_do_is_wedged() -> None:
    """After the least silence, as long as requests are short."""
    requests = Requests()
    requests.begin(A)
    requests.answer(B, WEDGED_LEAST - 1)
    assert requests.wedged == []


def test_the_least_silence_is_a_minute() -> None:
    """Short requests of others, and one that waits."""
    requests = Requests()
    requests.begin(A)
    for _ in range(int(WEDGED_LEAST)):
        requests.answer(B, 1)
    assert requests.wedged == []
    requests.answer(B, 1)
    assert requests.wedged == [A]
    said = "has answered no request for 61 s, while others did"
    assert [*requests.traffic.wedged(requests.now)] == [(A, said)]


def test_requests_that_all_take_long_are_waited_for() -> None:
    """Five times the longest one lately; a long one of another time no longer counts."""
    requests = Requests()
    requests.answer(B, 100)
    requests.begin(A)
    for _ in range(WEDGED_TIMES * 100 // 10):
        requests.answer(B, 10)
    assert requests.wedged == []
    requests.now += 1
    assert requests.wedged == [A]

    requests = Requests()
    requests.answer(B, 100)
    requests.now += LATELY
    requests.begin(A)
    for _ in range(7):
        requests.answer(B, 10)
    assert requests.wedged == [A]


def test_where_nobody_answers_nobody_is_wedged() -> None:
    """All may be busy with long prompts: none of them is at fault."""
    requests = Requests()
    requests.answer(B, 1)
    requests.begin(A)
    requests.begin(B)
    requests.now += 1000
    assert requests.wedged == []


def test_a_member_that_sends_parts_is_not_wedged() -> None:
    """A stream may be long, and others wait behind it."""
    requests = Requests()
    stream = requests.begin(A)
    requests.begin(A)
    for _ in range(20):
        requests.answer(B, 10)
        requests.traffic.note_byte(stream, requests.now)
    assert requests.wedged == []


def test_time_in_a_pause_is_no_silence() -> None:
    """A paused engine keeps its requests and sends nothing."""
    requests = Requests()
    requests.begin(A)
    requests.answer(B, 1)
    requests.traffic.pause(is_paused=True, now=requests.now)
    requests.now += 500
    assert requests.wedged == []
    requests.traffic.pause(is_paused=False, now=requests.now)
    for _ in range(int(WEDGED_LEAST) - 1):
        requests.answer(B, 1)
    assert requests.wedged == []
    requests.answer(B, 1)
    assert requests.wedged == [A]


def test_a_member_that_fails_each_request_while_others_do_not_is_wedged() -> None:
    """For as long as one that answers none; one that answers any, or few requests, is not."""
    requests = Requests()
    for _ in range(int(WEDGED_LEAST) + 2):
        requests.answer(B, 1)
        requests.end(requests.begin(A), is_error=True)
    assert requests.wedged == [A]
    requests.answer(A, 1)
    assert requests.wedged == []

    few = Requests()
    for _ in range(FAILED_LEAST - 1):
        few.answer(B, WEDGED_LEAST)
        few.end(few.begin(A), is_error=True)
    assert few.wedged == []
    few.end(few.begin(A), is_error=True)
    assert few.wedged == [A]
    few.traffic.cancel(A)  # as for the next process
    assert few.wedged == []


def test_where_all_fail_nobody_is_wedged() -> None:
    """The requests are at fault: another process would fail them, too."""
    requests = Requests()
    requests.answer(B, 1)
    for _ in range(100):
        for port in (A, B):
            requests.end(requests.begin(port), is_error=True)
        requests.now += 10
    assert requests.wedged == []


def test_an_idle_member_is_not_wedged() -> None:
    """It has no request."""
    requests = Requests()
    requests.answer(A, 1)
    for _ in range(200):
        requests.answer(B, 1)
    assert requests.wedged == []


def test_what_is_counted() -> None:
    """Requests, errors and those under way; a canceled one is an error without an answer."""
    requests = Requests()
    requests.answer(A, 1)
    flight = requests.begin(A)
    requests.end(flight, is_error=True)
    lost = requests.begin(A)
    requests.begin(A)
    requests.traffic.cancel(A)
    assert requests.canceled == [A, A]
    requests.end(lost, is_answered=False, is_error=True)
    of_a = requests.traffic.of(A)
    assert (of_a.requests, of_a.errors, len(of_a.flights)) == (4, 2, 1)
    assert requests.traffic.least_busy([A, B]) == B
