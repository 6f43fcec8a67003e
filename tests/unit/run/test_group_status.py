"""The status of groups: states of members, requests and errors by their front, and outages."""

from __future__ import annotations

from msgspec.structs import replace

from agent.job.front_protocol import FrontStatus
from agent.port.status_model import Reader
from agent.run.front_link import IdleTimes, RequestRates, front_seen
from agent.run.group_status import groups_status
from support.groups import RUNS, UP, a_goal, ends_with, status_of_front
from support.heads import Trace


def test_the_rate_of_requests() -> None:
    """It is that of the last ten seconds; a front that was started again counts anew."""
    rates = RequestRates()
    assert rates.by_port() == {}
    rates.add(0.0, status_of_front(0, 100))
    assert rates.by_port() == {}
    rates.add(5.0, status_of_front(10, 100))
    assert rates.by_port() == {22_000: 2.0, 22_001: 0.0}
    rates.add(10.0, status_of_front(10, 200))
    rates.add(15.0, status_of_front(10, 200))
    assert rates.by_port() == {22_000: 0.0, 22_001: 10.0}
    rates.add(20.0, status_of_front(1, 0))
    assert rates.by_port() == {22_000: 0.0, 22_001: 0.0}


def test_how_long_engines_were_idle() -> None:
    """No request waits and none was answered since the last look: for that time they are idle."""
    idle = IdleTimes()
    assert idle.share(0.0, 1.0) is None
    for now, requests, waiting in ((0, 5, 1), (10, 6, 0), (20, 6, 0), (30, 7, 1), (40, 9, 0)):
        status = status_of_front(requests)
        members = tuple(replace(one, waiting=waiting) for one in status.members)
        idle.add(float(now), replace(status, members=members))
    assert idle.share(0.0, 40.0) == 0.25  # from 20 to 30
    assert idle.share(25.0, 30.0) == 1.0
    assert idle.share(-1.0, 40.0) is None
    assert idle.share(40.0, 40.0) is None


def test_a_group_of_which_nothing_serves() -> None:
    """States are counted; the sentence says since when none serves, and outages are added up."""
    oom = "exit code 1 (CUDA out of memory)"
    events = [*RUNS, (7.0, ends_with(2, oom)), (8.0, ends_with(3, oom))]
    trace = Trace(a_goal(), [*UP, *events])
    (group,) = groups_status(trace.state, {}, lambda _node: None, Reader.ANYONE, 18.0)
    (service,) = group.services
    assert (group.name, group.joined, group.nodes) == ("rollout", 2, 2)
    assert (service.serving, service.states, service.nothing_since) == (0, {"loading": 4}, 8.0)
    since = "no engine serves since 00:00 UTC"
    assert service.short == f"{since}: all 4 on pod2 and pod3: {oom}; what needs it waits"
    assert service.may_recover
    assert service.requests_per_second is None
    first = service.members[0]
    assert (first.name, first.node, first.restarts) == ("engine.0", "pod2", 1)
    assert (first.outages, first.outage_seconds) == (1, 11.0)


def test_a_member_is_stale_for_a_moment_while_the_trainer_updates_the_others() -> None:
    """During a pause a member stays as it was; another process behind its port is seen at once."""
    before = front_seen("engine", status_of_front(0, 0), None)
    assert [one.state for one in before.members] == ["serving", "serving"]
    first, second = status_of_front(0, 0).members
    stale = replace(first, state="stale")
    other = replace(second, state="down", generation=2)
    paused = FrontStatus((stale, other), "8", held=0, since=0.0, is_paused=True)
    during = front_seen("engine", paused, before)
    assert [(one.state, one.generation) for one in during.members] == [("serving", 1), ("down", 2)]
    assert during.version == before.version
    after = front_seen("engine", replace(paused, is_paused=False), during)
    assert after.version == "8"
    assert [one.state for one in after.members] == ["stale", "down"]
