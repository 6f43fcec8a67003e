"""The members behind a front: which of them may serve, by the trainer's newest weights.

    down → stale → refitting → serving

1. A member is down without a process that answers its probe and accepts connections. One whose port
   refuses them has ended: what listens there later has the weights of its start.
2. It is stale while its weights are older than needed. Updates of the trainer are numbered in the
   order in which they arrive; a member serves only if it has loaded the needed one. A process that
   starts has the weights of its start, number 0: these are needed only in the first attempt, before
   its first update. A later attempt needs an update of its own trainer.
3. The trainer updates each member that is up by itself. The front repeats what a member missed: it
   is refitting until it has loaded the newest update.
4. A pause, resume or update without an answer leaves it unknown what a member has: it is stale.
   An update that it refuses while others load it is its own failure, and is sent again once. The
   trainer is answered with a refusal if none has loaded it.

All functions here are pure: a front, an event and the time become the next front. The server
compares the two: `sentences` is the log, `lost` and `outdated` say whose requests go to others,
`due` what it sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import field
from msgspec.structs import replace

from agent.base.value import Value
from agent.job.front_protocol import FrontOrder, MemberState, Slot
from agent.job.weight_dialects import VerbKind

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAINER_SENDS = 15.0
"""Seconds from an update's first request until each member that is up got its own: trainers send
them to all members at once. Later the front sends it: it may be a slot that the trainer lacks.
"""
REFIT_PAUSE = 5.0  # Seconds until a refit that broke is tried again: as most probes, often enough.
START = 0  # The number of the weights with which a process starts
UNKNOWN = -1

Result = Literal["done", "refused", "lost", "late"]
"""How a request to a member ended: 2xx, another answer, without an answer, or beyond its limit."""


class Call(Value):
    """A request of the trainer, as it is sent again."""

    path: str
    """With its query."""
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    """Those that an engine reads: the type of the body, and the trainer's credentials."""


class Update(Value):
    """New weights of the trainer."""

    number: int
    version: str
    folder: str
    call: Call
    at: float
    kept: str = ""
    """The front's own folder with the same files."""


class Member(Value):
    """One member, as its slot, and what it has loaded since its process started."""

    slot: Slot
    loaded: int = START
    version: str = ""
    sent: int = START
    """The number of the newest update that the trainer has sent to its slot."""
    loading: int = 0
    """The trainer's updates that it has not answered yet."""
    is_refitting: bool = False
    refit_after: float = 0.0
    refused: int = START
    """The number of an update that it refused as a refit: the front does not send it again."""
    refits: int = 0
    is_unreachable: bool = False
    is_mute: bool = False
    """A verb had no answer in time: the next ones are not sent to it until it has been refitted."""
    is_wedged: bool = False
    why: str = ""

    @property
    def is_up(self) -> bool:
        """Whether requests can be sent to it."""
        known = self.slot.answers and bool(self.slot.address)
        return known and not self.is_unreachable and not self.is_wedged

    @property
    def takes_verbs(self) -> bool:
        """Whether the trainer's verbs are sent to it."""
        return self.is_up and not self.is_mute

    @property
    def process(self) -> tuple[int, str]:
        """What identifies its process."""
        return self.slot.generation, self.slot.address


class Front(Value):
    """All members, and what the trainer wants of them."""

    attempt: int = 0
    members: dict[int, Member] = field(default_factory=dict)
    """By the port of their slot."""
    numbered: int = START
    """The last number that was given to an update."""
    needed: int = START
    newest: Update | None = None
    pause: Call | None = None
    """The trainer's pause, until it resumes."""
    folders: tuple[str, ...] = ()
    """Those of the trainer's updates that the front has not removed, the newest last."""
    began: float = 0.0
    """The time at which the run's first front began: an older folder is not the trainer's."""

    def state_of(self, member: Member) -> MemberState:
        """Return the state of a member."""
        if not member.is_up:
            return "down"
        if member.is_refitting:
            return "refitting"
        return "serving" if member.loaded >= self.needed else "stale"

    def serving(self) -> dict[int, Member]:
        """Return the members that may get data."""
        members = self.members.items()
        return {port: one for port, one in members if self.state_of(one) == "serving"}


# --- Events ---------------------------------------------------------------------------------------


class Ordered(Value):
    """The agent has sent its order."""

    order: FrontOrder


class VerbCame(Value):
    """The trainer has sent a verb to a slot."""

    port: int
    kind: VerbKind
    call: Call
    folder: str = ""
    version: str = ""


class VerbEnded(Value):
    """A verb that was sent on to a process has ended; an update has its number."""

    port: int
    process: tuple[int, str]
    kind: VerbKind
    result: Result
    number: int = START
    version: str = ""
    why: str = ""


class RefitBegan(Value):
    """The front sends an update to a process."""

    port: int


class RefitEnded(Value):
    """The process has loaded it, or has not, and why."""

    port: int
    process: tuple[int, str]
    update: Update
    result: Result
    why: str = ""


class Reached(Value):
    """A process accepts connections, or does not, and why; nothing listens where it has ended."""

    port: int
    process: tuple[int, str]
    is_reached: bool
    why: str = ""
    has_ended: bool = False


class Wedged(Value):
    """A process answers no request, and since when."""

    port: int
    process: tuple[int, str]
    why: str


class FolderKept(Value):
    """The front has its own folder of an update."""

    number: int
    kept: str


class FolderRemoved(Value):
    """The front removes the folder of an older update."""

    folder: str


Event = (
    Ordered
    | VerbCame
    | VerbEnded
    | RefitBegan
    | RefitEnded
    | Reached
    | Wedged
    | FolderKept
    | FolderRemoved
)


def transition(front: Front, event: Event, now: float) -> Front:
    """Return the front after an event."""
    if isinstance(event, Ordered):
        return _on_order(front, event.order)
    if isinstance(event, VerbCame):
        return _on_verb(_remember(front, event, now), event)
    if isinstance(event, FolderKept):
        return _on_kept(front, event)
    if isinstance(event, FolderRemoved):
        return replace(front, folders=_without(front.folders, event.folder))
    member = front.members.get(event.port)
    if member is None:
        return front  # its slot was removed meanwhile
    if isinstance(event, RefitBegan):
        return _with(front, replace(member, is_refitting=True))
    if member.process != event.process:
        return front  # its process was replaced meanwhile
    return _with(front, _after(member, event, now))


def _after(member: Member, event: VerbEnded | RefitEnded | Reached | Wedged, now: float) -> Member:
    """Return a member after an event of its process."""
    if isinstance(event, VerbEnded):
        return _after_verb(member, event, now)
    if isinstance(event, RefitEnded):
        return _after_refit(member, event, now)
    if isinstance(event, Reached):
        why = "" if event.is_reached else event.why
        member = replace(member, is_unreachable=not event.is_reached, why=why)
        # Its command may start the next process by itself, which the agent does not see.
        return replace(member, loaded=START, version="") if event.has_ended else member
    return replace(member, is_wedged=True, loaded=UNKNOWN, why=event.why)


def _on_order(front: Front, order: FrontOrder) -> Front:
    """Take the members, and begin another attempt.

    Within an attempt a slot stays that an order lacks: the trainer has its address. An agent that
    replaces a killed one learns of the nodes one after the other.
    """
    kept = front.members
    if order.attempt != front.attempt:
        kept = {}
        front = replace(front, attempt=order.attempt, newest=None, pause=None)
        # Only the first attempt can begin with the weights with which the engines started.
        if order.attempt > 1:
            front = replace(front, numbered=front.numbered + 1, needed=front.numbered + 1)
    members = {slot.port: _in_slot(front.members.get(slot.port), slot) for slot in order.slots}
    return replace(front, members={**kept, **members})


def _in_slot(former: Member | None, slot: Slot) -> Member:
    if former is None:
        return Member(slot)
    member = replace(former, slot=slot)
    if member.process == former.process:
        return member
    return Member(slot, sent=former.sent, refits=former.refits)


def _on_verb(front: Front, event: VerbCame) -> Front:
    """Note what a member has got, or missed."""
    member = front.members.get(event.port)
    if member is None:
        return front
    if event.kind == "update" and front.newest is not None and event.folder:
        member = replace(member, sent=front.newest.number)
        if member.takes_verbs:
            member = replace(member, loading=member.loading + 1)
    elif event.kind in {"pause", "resume"} and not member.takes_verbs:
        # Its process may come back in the former state: a refit ends that, too.
        member = replace(member, loaded=UNKNOWN)
    return _with(front, member)


def _remember(front: Front, event: VerbCame, now: float) -> Front:
    """Note what the trainer wants of all members."""
    if event.kind == "pause":
        return replace(front, pause=event.call)
    if event.kind == "resume":
        return replace(front, pause=None)
    if event.kind != "update" or not event.folder:
        return front
    newest = front.newest
    if newest is not None and (newest.folder, newest.version) == (event.folder, event.version):
        # The same one, for another member or once more; or one that was written to the same folder?
        member = front.members.get(event.port)
        if member is None or min(member.sent, member.loaded) < newest.number:
            return front
    number = front.numbered + 1
    update = Update(number, event.version, event.folder, event.call, now)
    folders = (*_without(front.folders, event.folder), event.folder)
    return replace(front, numbered=number, needed=number, newest=update, folders=folders)


def _on_kept(front: Front, event: FolderKept) -> Front:
    if front.newest is None or front.newest.number != event.number:
        return front
    return replace(front, newest=replace(front.newest, kept=event.kept))


def _without(folders: tuple[str, ...], removed: str) -> tuple[str, ...]:
    return tuple(folder for folder in folders if folder != removed)


def _after_verb(member: Member, event: VerbEnded, now: float) -> Member:
    if event.kind == "update":
        member = replace(member, loading=max(0, member.loading - 1))
        if event.result == "done":
            return _loaded(member, event.number, event.version)
        # Refused: its view of the disk may be older than others'; later it may find the folder.
        pause = REFIT_PAUSE if event.result == "refused" else 0.0
        hangs = event.result == "late"  # another update would hang, too, and the trainer with it
        return replace(
            member,
            loaded=UNKNOWN,
            refit_after=now + pause,
            is_wedged=member.is_wedged or hangs,
            why=event.why,
        )
    if event.result == "late":
        return replace(member, loaded=UNKNOWN, is_mute=True, why=event.why)
    if event.kind in {"pause", "resume"} and event.result == "lost":
        return replace(member, loaded=UNKNOWN, why=event.why)
    return member


def _after_refit(member: Member, event: RefitEnded, now: float) -> Member:
    member = replace(member, is_refitting=False)
    if event.result == "done":
        member = replace(member, is_mute=False)
        return replace(
            _loaded(member, event.update.number, event.update.version), refits=member.refits + 1
        )
    why = f"last refit failed: {event.why}"
    member = replace(member, loaded=UNKNOWN, why=why, refit_after=now + REFIT_PAUSE)
    if event.result == "refused":
        return replace(member, refused=event.update.number)
    return replace(member, is_wedged=True) if event.result == "late" else member


def _loaded(member: Member, number: int, version: str) -> Member:
    """Return a member that has loaded an update, unless it has a newer one already."""
    if number < member.loaded:
        return member
    return replace(member, loaded=number, version=version, why="", refit_after=0.0)


def _with(front: Front, member: Member) -> Front:
    return replace(front, members={**front.members, member.slot.port: member})


# --- What follows from it -------------------------------------------------------------------------


def due(front: Front, now: float) -> Iterator[Member]:
    """Yield the members to which the newest update is to be sent now."""
    newest = front.newest
    if newest is None:
        return
    for member in front.members.values():
        is_its_turn = member.sent >= newest.number or now >= newest.at + TRAINER_SENDS
        if (
            front.state_of(member) == "stale"
            and is_its_turn
            and member.loading == 0
            and member.refused != newest.number
            and now >= member.refit_after
        ):
            yield member


def is_loadable(front: Front, number: int, now: float) -> bool | None:
    """Return whether a member has loaded an update; None while one still may."""
    members = front.members.values()
    if any(member.loaded >= number for member in members):
        return True
    newest = front.newest
    is_sent_to_all = newest is None or now >= newest.at + TRAINER_SENDS
    others_follow = not is_sent_to_all and any(
        member.takes_verbs and member.sent < number for member in members
    )
    return None if others_follow or any(member.loading for member in members) else False


def superseded(front: Front, keep: int) -> Iterator[str]:
    """Yield the folders of older updates, which no member needs, without the newest `keep`.

    Only folders with a number at their end are removed, beside that of the newest update.
    """
    newest = front.newest
    if not keep or newest is None or front.pause is not None:
        return  # while the trainer updates the members, one of them may still load an older one
    parent = newest.folder.rstrip("/").rpartition("/")[0]
    for folder in front.folders[:-keep]:
        is_beside = parent != "" and folder.rstrip("/").rpartition("/")[0] == parent
        if is_beside and is_numbered(folder):
            yield folder


def is_numbered(folder: str) -> bool:
    """Return whether a folder is one of many: a trainer may also send that of a model."""
    return folder.rstrip("/")[-1:].isdecimal()


def lost(before: Front, after: Front) -> Iterator[int]:
    """Yield the ports whose requests were sent to a process that no longer gets any."""
    for port, member in before.members.items():
        successor = after.members.get(port)
        if successor is member:
            continue
        if successor is None or successor.process != member.process:
            yield port
            continue
        if successor.is_wedged != member.is_wedged:
            yield port


def outdated(before: Front, after: Front) -> Iterator[int]:
    """Yield the ports of members that have missed an update, as the trainer resumes.

    What they still answer to older requests is of older weights, however late it comes.
    """
    if before.pause is not None and after.pause is None:
        for port, member in after.members.items():
            if member.loaded < after.needed:
                yield port


def silent(before: Front, after: Front) -> Iterator[tuple[int, bool]]:
    """Yield the ports whose members no longer answer, and whether that is true of their nodes."""
    for port, member in before.members.items():
        successor = after.members.get(port)
        if successor is None or successor is member:
            continue
        is_cut_off = successor.slot.is_cut_off and not member.slot.is_cut_off
        if is_cut_off or (member.slot.answers and not successor.slot.answers):
            yield port, is_cut_off


def restored(saved: Front, now: float) -> Front:
    """Return what a former front has saved, for one that goes on: no request is in flight."""
    newest = saved.newest
    members = {
        port: replace(
            member,
            slot=replace(member.slot, answers=False),
            loaded=UNKNOWN if member.loading or member.is_refitting else member.loaded,
            loading=0,
            is_refitting=False,
            refit_after=0.0,
        )
        for port, member in saved.members.items()
    }
    renewed = None if newest is None else replace(newest, at=now)
    return replace(saved, members=members, newest=renewed)


def sentences(before: Front, after: Front) -> Iterator[str]:
    """Yield a sentence for each change."""
    if before.attempt != after.attempt:
        needs = "" if after.attempt <= 1 else ": members are stale until its first update"
        yield f"attempt {after.attempt} begins{needs}"
    elif before.pause is None and after.pause is not None:
        yield f"the trainer pauses the members ({after.pause.path}): requests are held"
    elif before.pause is not None and after.pause is None:
        yield "the trainer resumes the members"
    if after.newest is not None and before.numbered != after.numbered:
        yield f"the trainer's newest weights are version {after.newest.version}"
    for port, member in after.members.items():
        former = before.members.get(port)
        if former is member and before.needed == after.needed:
            continue  # quickly: a trainer sends verbs to hundreds of members at once
        was = "new" if former is None else before.state_of(former)
        state = after.state_of(member)
        has_restarted = former is not None and former.process != member.process
        if state != was or has_restarted:
            yield f"{member.slot.name}: {was} -> {state}{_details(after, member)}"
    for port in before.members.keys() - after.members.keys():
        yield f"{before.members[port].slot.name}: removed"


def _details(front: Front, member: Member) -> str:
    """Return what explains the state of a member."""
    state = front.state_of(member)
    newest = front.newest
    if state == "refitting":
        return "" if newest is None else f", loads version {newest.version}"
    if state == "serving":
        return f", version {member.version}" if member.version else ", the weights of its start"
    if member.why:
        return f", {member.why}"
    if state == "stale":
        needs = "an update of this attempt" if newest is None else f"version {newest.version}"
        return f", needs {needs}"
    return f", generation {member.slot.generation}"
