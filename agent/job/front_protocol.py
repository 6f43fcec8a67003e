"""What the agent sends to the front of a service, and what it replies.

The agent sends `PUT /front` with a `FrontOrder` about once a second and after each change, with
`Authorization: Bearer KEY`; the reply is a `FrontStatus`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from agent.base.value import Attempt, Count, Port, Timestamp, Value

CONTROL_PATH = "/front"
LIVE_PATH = "/livez"
"""Answers on the control port, to whoever asks, as long as the front takes orders."""
KEY = "AGENT_FRONT_KEY"
"""The variable of the front's environment with the key of its control port."""

MemberState = Literal["down", "stale", "refitting", "serving"]
Generation = Annotated[int, Meta(ge=0, le=2**53)]
_MOST_SLOTS = Meta(max_length=20_000)


class Slot(Value):
    """One port of the front, and the member that stands behind it."""

    port: Port
    name: str
    """For the log: `engine.0 on n5`."""
    address: str
    """`HOST:PORT` of the member; '' while it has none."""
    generation: Generation
    answers: bool
    """Whether its process answers its probe."""
    is_cut_off: bool = False
    """Whether its node is silent or has left: what it has not answered is not waited for."""


class FrontOrder(Value):
    """All slots of a front, and the attempt of the run."""

    attempt: Attempt
    slots: Annotated[tuple[Slot, ...], _MOST_SLOTS]


class SlotStatus(Value):
    """What the front reports of one slot and its member."""

    port: Port
    generation: int
    """Of the process that it was last sent requests for."""
    state: MemberState
    version: str
    """Of its weights, as the trainer names it; '' for unknown ones, or those of its start."""
    requests: Count
    """Requests that it got so far, in all generations."""
    errors: Count
    """Of these, how many it answered with 5xx, or did not answer."""
    waiting: Count
    """Of these, how many it has not answered yet."""
    refits: Count
    """How often the front has loaded the trainer's newest weights into it."""
    why: str
    """Why it does not serve, if there is a reason that the agent cannot see."""
    is_wedged: bool
    """Whether it answers its probe but no request, or hangs in a refit: only a restart helps."""


class FrontStatus(Value):
    """The state of all slots of a front."""

    members: Annotated[tuple[SlotStatus, ...], _MOST_SLOTS]
    version: str
    """The trainer's newest version of this attempt; '' before the first one."""
    held: Count
    """Requests that wait for a member."""
    since: Timestamp
    """When the last member stopped to serve, in seconds since 1970; 0 while one serves."""
    is_paused: bool
    """Whether the trainer has paused the members."""
