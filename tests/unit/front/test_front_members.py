"""Which member of a front serves, by histories of events."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

import msgspec
import pytest

from agent.front.front_members import (
    REFIT_PAUSE,
    TRAINER_SENDS,
    Call,
    Event,
    FolderKept,
    FolderRemoved,
    Front,
    Ordered,
    Reached,
    RefitBegan,
    RefitEnded,
    Result,
    Update,
    VerbCame,
    VerbEnded,
    Wedged,
    due,
    lost,
    restored,
    sentences,
    superseded,
    transition,
)
from agent.job.front_protocol import FrontOrder, Slot

A, B = 21_001, 21_002
NAMES = {A: "a", B: "b"}
PAUSE = Call("/pause_generation", b"{}")


class Process(NamedTuple):
    """A process behind a port, as a test names it."""

    generation: int = 1
    answers: bool = True
    address: str = "10.0.0.1:1"


UP = Process()
DOWN = Process(answers=False)
LOADING = Process(generation=2, answers=False)
BACK = Process(generation=2)


class History:
    """A front, the log so far, and the time."""

    def __init__(self, front: Front | None = None) -> None:
        self.front = front or Front()
        self.now = 100.0
        self.log: list[str] = []
        self.lost: list[int] = []

    def apply(self, event: Event) -> None:
        """Take one event."""
        before = self.front
        self.front = transition(before, event, self.now)
        self.log += sentences(before, self.front)
        self.lost += lost(before, self.front)

    def order(self, a: Process = UP, b: Process = UP, attempt: int = 1) -> History:
        """Send the agent's order."""
        slots = (
            Slot(port, NAMES[port], one.address, one.generation, one.answers)
            for port, one in ((A, a), (B, b))
        )
        self.apply(Ordered(FrontOrder(attempt, tuple(slots))))
        return self

    def update(self, version: str, *results: tuple[int, Result | None]) -> History:
        """Send an update to these slots, whose members answer so; None: not yet."""
        call = Call("/update_weights_from_disk", version.encode())
        for port, result in results:
            was_up = self.front.members[port].is_up
            self.apply(VerbCame(port, "update", call, f"/w/{version}", version))
            if was_up and result is not None:
                self.end_update(port, result)
        return self

    def end_update(self, port: int, result: Result, generation: int = 0) -> History:
        """Have a member, or a former process of it, answer the newest update."""
        newest = self.front.newest
        assert newest is not None
        slot = self.front.members[port].slot
        who = (generation or slot.generation, slot.address)
        number, version = newest.number, newest.version
        self.apply(VerbEnded(port, who, "update", result, number, version, why="told"))
        return self

    def verb(self, kind: Literal["pause", "resume"], port: int, result: Result = "done") -> History:
        """Send a pause or a resume to a slot."""
        member = self.front.members[port]
        self.apply(VerbCame(port, kind, PAUSE))
        if member.is_up:
            self.apply(VerbEnded(port, member.process, kind, result, why="told"))
        return self

    def begin_refit(self, port: int) -> Update:
        """Begin a refit that is due."""
        assert port in self.due
        self.apply(RefitBegan(port))
        assert self.front.newest is not None
        return self.front.newest

    def end_refit(self, port: int, update: Update, result: Result) -> History:
        """End it."""
        member = self.front.members[port]
        self.apply(RefitEnded(port, member.process, update, result, "told"))
        return self

    def refit(self, port: int, result: Result = "done") -> History:
        """Begin and end a refit that is due."""
        return self.end_refit(port, self.begin_refit(port), result)

    def later(self, seconds: float) -> History:
        """Let time pass."""
        self.now += seconds
        return self

    @property
    def states(self) -> tuple[str, str]:
        """The states of both members, with their versions where they serve."""
        a, b = (self._state(port) for port in (A, B))
        return a, b

    def _state(self, port: int) -> str:
        member = self.front.members[port]
        state = self.front.state_of(member)
        return f"serving {member.version}".strip() if state == "serving" else state

    @property
    def due(self) -> set[int]:
        """The ports whose members the front has to update now."""
        return {member.slot.port for member in due(self.front, self.now)}


def new() -> History:
    """Return a front with two members in the first attempt."""
    return History().order()


def synced(version: str = "7") -> History:
    """Return one whose members have both loaded a version."""
    return new().update(version, (A, "done"), (B, "done"))


# --- attempts -------------------------------------------------------------------------------------


def test_members_of_the_first_attempt_serve_with_the_weights_of_their_start() -> None:
    """Nothing newer exists, also for one that is started again."""
    assert new().states == ("serving", "serving")
    assert new().order(b=LOADING).states == ("serving", "down")
    assert new().order(b=LOADING).order(b=BACK).states == ("serving", "serving")


def test_a_later_attempt_needs_an_update_of_its_own_trainer() -> None:
    """Versions begin anew; the former version 7 is another one."""
    history = synced("7").order(attempt=2)
    assert history.states == ("stale", "stale")
    assert history.due == set()
    history.update("7", (A, "done"), (B, None))
    assert history.states == ("serving 7", "stale")
    assert history.end_update(B, "done").states == ("serving 7", "serving 7")
    assert "attempt 2 begins: members are stale until its first update" in history.log


def test_a_front_that_starts_in_a_later_attempt_has_stale_members() -> None:
    """Nobody knows what they have."""
    assert History().order(attempt=3).states == ("stale", "stale")


def test_a_new_attempt_is_not_paused() -> None:
    """The trainer that has paused the members is gone."""
    history = new().verb("pause", A).order(attempt=2)
    assert history.front.pause is None


def test_what_an_engine_answers_to_the_former_trainer_does_not_count() -> None:
    """It ends an update of the former attempt after the new one began."""
    history = synced("7").update("8", (A, None)).order(attempt=2)
    member = history.front.members[A]
    number = history.front.numbered - 1
    history.apply(VerbEnded(A, member.process, "update", "done", number, "8"))
    assert history.states == ("stale", "stale")


# --- the trainer's updates ------------------------------------------------------------------------


def test_an_update_that_succeeds_makes_its_member_serve() -> None:
    """The others are stale until theirs has succeeded; the trainer sends it, not the front."""
    history = synced("7").update("8", (A, "done"))
    assert history.states == ("serving 8", "stale")
    assert history.due == set()
    history.update("8", (B, "done"))
    assert history.states == ("serving 8", "serving 8")
    assert [line for line in history.log if "newest" in line] == [
        "the trainer's newest weights are version 7",
        "the trainer's newest weights are version 8",
    ]


def test_a_slot_that_the_trainer_does_not_know_is_updated_by_the_front() -> None:
    """After all updates of the trainer have had their time."""
    history = synced("7").update("8", (A, "done")).later(TRAINER_SENDS - 1)
    assert history.due == set()
    assert history.later(1).due == {B}


def test_an_update_that_hangs_shows_a_wedged_member() -> None:
    """Another update would hang, too, and the trainer with it: it is restarted."""
    history = synced("7").update("8", (A, "done"), (B, "late"))
    assert history.states == ("serving 8", "down")
    assert history.front.members[B].is_wedged


def test_an_update_without_an_answer_is_sent_again() -> None:
    """Nobody knows what the member has: it gets it from the front at once."""
    history = synced("7").update("8", (A, "done"), (B, "lost"))
    assert history.states == ("serving 8", "stale")
    assert history.refit(B).states == ("serving 8", "serving 8")
    assert history.front.members[B].refits == 1


def test_a_folder_that_is_written_anew_is_another_update() -> None:
    """A trainer may write each update to the same folder, and give it no version."""
    history = synced("weights").order(b=DOWN)
    history.update("weights", (A, "done"), (B, None)).order()
    assert history.states == ("serving weights", "stale")
    assert history.refit(B).states == ("serving weights", "serving weights")


def test_an_update_that_failed_and_is_sent_once_more_is_the_same() -> None:
    """The others have it already."""
    history = synced("7").update("8", (A, "done"), (B, "lost")).update("8", (B, "done"))
    assert history.states == ("serving 8", "serving 8")


def test_an_update_that_a_member_refuses_is_sent_again_once() -> None:
    """Its disk may show the folder later than others'; then the next version comes."""
    history = synced("7").update("8", (A, "done"), (B, "refused"))
    assert history.due == set()
    assert history.front.members[B].why == "told"
    assert history.later(REFIT_PAUSE).refit(B, "refused").later(1000).due == set()
    assert history.update("9", (A, "done"), (B, "done")).states == ("serving 9", "serving 9")


@pytest.mark.parametrize("kind", ["pause", "resume"])
@pytest.mark.parametrize("result", ["lost", "late"])
def test_a_pause_without_an_answer_makes_a_member_stale(
    kind: Literal["pause", "resume"], result: Result
) -> None:
    """It may be paused although the others are not."""
    history = synced("7").verb("pause", A).verb(kind, B, result)
    assert history.states[1] == "stale"
    assert history.due == {B}


def test_a_member_that_was_down_at_a_resume_is_stale() -> None:
    """Its process goes on, and is still paused."""
    history = synced("7").verb("pause", A).verb("pause", B).order(b=DOWN)
    history.verb("resume", A).verb("resume", B).order()
    assert history.states == ("serving 7", "stale")
    assert history.due == {B}


def test_a_pause_that_is_refused_changes_nothing() -> None:
    """An engine without the verb is not stale."""
    assert synced("7").verb("pause", B, "refused").states[1] == "serving 7"


# --- restarts -------------------------------------------------------------------------------------


def test_a_restarted_member_serves_only_after_a_refit() -> None:
    """Down, stale, refitting, serving."""
    history = synced("7").order(b=LOADING)
    assert history.states == ("serving 7", "down")
    history.order(b=BACK)
    assert history.states == ("serving 7", "stale")
    update = history.begin_refit(B)
    assert history.states == ("serving 7", "refitting")
    assert history.due == set()
    history.end_refit(B, update, "done")
    assert history.states == ("serving 7", "serving 7")
    assert history.log[-4:] == [
        "b: serving -> down, generation 2",
        "b: down -> stale, needs version 7",
        "b: stale -> refitting, loads version 7",
        "b: refitting -> serving, version 7",
    ]


def test_a_member_that_misses_its_update_gets_it_once_it_is_back() -> None:
    """The trainer has sent it to its slot, so the front need not wait for that."""
    history = synced("7").order(b=LOADING).update("8", (A, "done"), (B, "done"))
    assert history.states == ("serving 8", "down")
    assert history.order(b=BACK).due == {B}


def test_a_restart_that_nobody_saw_down_makes_a_member_stale() -> None:
    """The agent reports the next generation at once."""
    history = synced("7").order(b=BACK)
    assert history.states == ("serving 7", "stale")
    assert history.lost == [B]


def test_a_member_at_another_address_is_another_process() -> None:
    """Its node was replaced."""
    history = synced("7").order(b=Process(address="10.0.0.9:1"))
    assert history.states == ("serving 7", "stale")
    assert history.lost == [B]


def test_a_process_that_answers_again_has_kept_its_weights() -> None:
    """A probe may fail while an engine is busy; its requests stay with it."""
    history = synced("7").order(b=DOWN)
    assert history.states == ("serving 7", "down")
    assert history.order().states == ("serving 7", "serving 7")
    assert history.lost == []


def test_a_newer_update_during_a_refit_is_sent_after_it() -> None:
    """The member serves with neither of the older ones."""
    history = synced("7").order(b=BACK)
    update = history.begin_refit(B)
    history.update("8", (A, "done"), (B, "lost"))
    history.end_refit(B, update, "done")
    assert history.states == ("serving 8", "stale")
    assert history.refit(B).states == ("serving 8", "serving 8")


def test_the_trainer_updates_a_member_during_its_refit() -> None:
    """The front does not load it once more."""
    history = synced("7").order(b=BACK)
    update = history.begin_refit(B)
    history.update("8", (A, "done"), (B, None))
    history.end_refit(B, update, "done")
    assert history.due == set()
    assert history.end_update(B, "done").states == ("serving 8", "serving 8")


def test_an_update_of_a_former_process_does_not_count() -> None:
    """It is answered by the connection's end, after the next process has come."""
    history = synced("7").update("8", (A, "done"), (B, None)).order(b=BACK)
    history.end_update(B, "done", generation=1)
    assert history.states == ("serving 8", "stale")
    assert history.due == {B}


@pytest.mark.parametrize(
    ("result", "state", "is_wedged", "due_later"),
    [
        ("lost", "stale", False, {B}),
        ("refused", "stale", False, set()),
        ("late", "down", True, set()),
    ],
)
def test_a_refit_that_fails(
    result: Result,
    state: str,
    is_wedged: bool,  # noqa: FBT001 - a column
    due_later: set[int],
) -> None:
    """Broken: again after a pause. Refused: the next update. Hanging: only a restart helps."""
    history = synced("7").order(b=BACK).refit(B, result)
    assert history.states[1] == state
    assert history.front.members[B].why == "last refit failed: told"
    assert history.front.members[B].is_wedged == is_wedged
    assert history.due == set()
    assert history.later(REFIT_PAUSE).due == due_later
    history.order(b=Process(generation=3))
    assert history.due == {B}
    assert history.refit(B).states[1] == "serving 7"


# --- connections and wedged members ---------------------------------------------------------------


def test_a_member_without_a_connection_is_down_until_it_accepts_one() -> None:
    """The agent's probe takes longer to fail; behind a bad link it has kept its weights."""
    history = synced("7")
    history.apply(Reached(B, (1, UP.address), is_reached=False, why="cannot connect"))
    assert history.order().states == ("serving 7", "down")
    assert history.log[-1] == "b: serving -> down, cannot connect"
    history.apply(Reached(B, (1, UP.address), is_reached=True))
    assert history.states == ("serving 7", "serving 7")
    assert history.lost == []


def test_a_member_whose_port_refuses_connections_has_ended() -> None:
    """What listens there later is another process, also if the agent sees none."""
    history = synced("7")
    for has_ended in (True, False):
        history.apply(Reached(B, (1, UP.address), is_reached=False, has_ended=has_ended))
    history.apply(Reached(B, (1, UP.address), is_reached=True))
    assert history.states == ("serving 7", "stale")
    assert history.refit(B).states[1] == "serving 7"


def test_a_wedged_member_gets_requests_only_after_a_restart() -> None:
    """Its requests go to others."""
    history = synced("7")
    history.apply(Wedged(B, (1, UP.address), "has answered nothing"))
    assert history.order().states == ("serving 7", "down")
    assert history.lost == [B]
    assert history.update("8", (A, "done"), (B, "done")).states == ("serving 8", "down")
    assert history.order(b=BACK).states == ("serving 8", "stale")


def test_a_slot_stays_within_an_attempt() -> None:
    """An agent that replaces a killed one does not know all nodes yet."""
    history = synced("7")
    slot = Slot(A, "a", UP.address, 1, answers=True)
    history.apply(Ordered(FrontOrder(1, (slot,))))
    assert history.states == ("serving 7", "serving 7")


def test_a_slot_that_the_next_attempt_lacks_is_forgotten() -> None:
    """What happens there later changes nothing."""
    history = synced("7")
    slot = Slot(A, "a", UP.address, 1, answers=True)
    history.apply(Ordered(FrontOrder(2, (slot,))))
    assert B in history.lost
    before = history.front
    history.apply(Reached(B, (1, UP.address), is_reached=False))
    history.apply(RefitBegan(B))
    assert history.front == before
    assert history.log[-1] == "b: removed"


def test_a_verb_to_an_unknown_slot_counts_for_all() -> None:
    """The trainer still has its address."""
    history = synced("7")
    history.apply(VerbCame(9, "update", PAUSE, "/w/8", "8"))
    assert history.states == ("stale", "stale")


# --- the next process of the front ----------------------------------------------------------------


def test_the_next_front_knows_what_the_members_have() -> None:
    """Written as JSON and read again; what was in flight is unknown."""
    history = synced("7").update("8", (A, "done"), (B, None))
    saved = msgspec.json.decode(msgspec.json.encode(history.front), type=Front)
    following = History(restored(saved, 5.0))
    following.now = 5.0
    assert following.states == ("down", "down")
    assert following.order().states == ("serving 8", "stale")
    assert following.due == {B}


def test_the_next_front_finds_restarted_members_stale() -> None:
    """They were started again while no front ran."""
    saved = restored(synced("7").front, 5.0)
    assert History(saved).order(b=BACK).states == ("serving 7", "stale")


# --- any history ----------------------------------------------------------------------------------


class _World:
    """Two engines with their real weights, beside what a front knows of them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - histories, no secrets
        self.history = new()
        self.attempt = 1
        self.version = 0
        self.real = {A: 0, B: 0}
        """The number of the update that an engine has loaded; -1 for a part of one."""
        self.generations = {A: 1, B: 1}
        self.answers = {A: True, B: True}
        self.loads: list[tuple[int, tuple[int, str], Update, bool]] = []
        """In flight: port, process, update, and whether it is a refit."""

    def step(self) -> None:
        """Have something happen to one of both."""
        port = self.chance.choice((A, B))
        steps = (self.restart, self.probe, self.next_attempt, self.update, self.end, self.refit)
        self.chance.choice((*steps, self.end, self.refit, self.pause))(port)
        a, b = (Process(self.generations[at], self.answers[at]) for at in (A, B))
        self.history.order(a, b, self.attempt).later(self.chance.random() * 10)

    def restart(self, port: int) -> None:
        """Start an engine again."""
        self.generations[port] += 1
        self.real[port] = 0
        self.answers[port] = self.chance.random() < 0.5

    def probe(self, port: int) -> None:
        """Have the probe fail or succeed again."""
        self.answers[port] = not self.answers[port]

    def next_attempt(self, _port: int) -> None:
        """Begin another attempt, sometimes."""
        self.attempt += self.chance.random() < 0.2

    def update(self, port: int) -> None:
        """Have the trainer send an update, a new one or the same again."""
        self.version += self.chance.random() < 0.5
        name = str(self.version)
        member = self.history.front.members[port]
        self.history.apply(VerbCame(port, "update", PAUSE, f"/w/{name}", name))
        newest = self.history.front.newest
        assert newest is not None
        if member.is_up:
            self.loads.append((port, member.process, newest, False))

    def refit(self, port: int) -> None:
        """Have the front send what is due."""
        if port in self.history.due:
            process = self.history.front.members[port].process
            self.loads.append((port, process, self.history.begin_refit(port), True))

    def end(self, port: int) -> None:
        """End the oldest load of an engine: each loads one after the other."""
        load = next((load for load in self.loads if load[0] == port), None)
        if load is None:
            return
        self.loads.remove(load)
        _, process, update, is_refit = load
        results: tuple[Result, ...] = ("done", "done", "refused", "lost", "late")
        result = self.chance.choice(results)
        if process[0] == self.generations[port]:
            self.real[port] = update.number if result == "done" else -1
        if is_refit:
            self.history.apply(RefitEnded(port, process, update, result))
        else:
            number, version = update.number, update.version
            self.history.apply(VerbEnded(port, process, "update", result, number, version))

    def pause(self, port: int) -> None:
        """Have the trainer pause or resume one."""
        kinds: tuple[Literal["pause", "resume"], ...] = ("pause", "resume")
        results: tuple[Result, ...] = ("done", "lost")
        self.history.verb(self.chance.choice(kinds), port, self.chance.choice(results))

    def check(self) -> int:
        """Return how many serve; each of them has the newest weights."""
        front = self.history.front
        for port in front.serving():
            assert self.answers[port]
            needed = 0 if front.newest is None else front.newest.number
            assert self.real[port] == needed, self.history.log
            assert self.attempt == 1 or front.newest is not None
        return len(front.serving())


def test_no_member_serves_with_older_weights_in_any_history() -> None:
    """Whatever restarts, fails or comes late: who serves has the newest weights."""
    serving = 0
    for seed in range(300):
        world = _World(seed)
        for _ in range(60):
            world.step()
            serving += world.check()
    assert serving > 1000  # they do serve


# --- Folders of older updates ---------------------------------------------------------------------


def test_older_folders_are_removed_once_the_trainer_resumes() -> None:
    """The newest two stay: a member may still load the one before."""
    history = History().order()
    for version in ("1", "2", "3"):
        history.verb("pause", A).update(version, (A, "done"), (B, "done"))
    assert [*superseded(history.front, 2)] == []
    history.verb("resume", A)
    assert [*superseded(history.front, 0)] == []
    assert [*superseded(history.front, 2)] == ["/w/1"]
    history.apply(FolderRemoved("/w/1"))
    assert history.front.folders == ("/w/2", "/w/3")
    assert [*superseded(history.front, 2)] == []


def test_a_later_attempt_writes_the_same_folders_anew() -> None:
    """A folder that is written again is a new one, and those of the former attempt are removed."""
    history = History().order()
    for version in ("1", "2"):
        history.update(version, (A, "done"), (B, "done"))
    history.order(attempt=2).update("1", (A, "done"), (B, "done"))
    assert history.front.folders == ("/w/2", "/w/1")
    history.update("2", (A, "done"), (B, "done"))
    assert history.front.folders == ("/w/1", "/w/2")
    assert [*superseded(history.front, 2)] == []


def test_the_fronts_own_folder_is_of_the_newest_update_alone() -> None:
    """One that is finished after the next update has come is no longer of use, and no update."""
    history = History().order().update("1", (A, "done"), (B, "done"))
    history.apply(FolderKept(1, "/w/.pod-agent/1"))
    assert history.front.newest is not None
    assert history.front.newest.kept == "/w/.pod-agent/1"
    history.update("2", (A, "done"), (B, "done")).apply(FolderKept(1, "/w/.pod-agent/1"))
    assert history.front.newest.kept == ""
    newest = [line for line in history.log if "newest weights" in line]
    assert newest == [f"the trainer's newest weights are version {number}" for number in (1, 2)]


def test_only_numbered_folders_beside_the_newest_are_removed() -> None:
    """A trainer may also send the folder of a model."""
    front = Front(folders=("/models/qwen", "/other/v1", "/w/base", "/w/1", "/w/2", "/w/3"))
    newest = Update(1, "3", "/w/3", Call("/u"), 0.0)
    assert [*superseded(msgspec.structs.replace(front, newest=newest), 2)] == ["/w/1"]
