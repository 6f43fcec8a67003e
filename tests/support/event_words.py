"""Tables of histories, in words.

    a worker that stays away costs the attempt [1 workers]
        pair | 9 pod2 silent: refused | 68.9 tick | 69 tick -> stop run-1
        70 job STOPPED -> end 75: …pod2 …silent since: refused

A case is its title, with its goal in brackets unless that is the plain one, and its history on
indented lines; lines that are indented twice go on. Steps are separated by `|` or by lines. A step
is a time, an event, and after `->` what is done about it, separated by `&`: `…` stands for any
words. A step may also be a name that the table is given: of an event after a time, or of several
steps. Other steps tell what is so by then:

    log WORDS         a line with these words was logged so far; `once WORDS`: and no other
    not logged WORDS  no line has these words
    waits A & B       these waits are pending, and no others
    phase WORD        the phase that is reached
    culprit WORDS     the culprit of the outcome; `marks WORDS`: what else is true of it
    alive A & B       the nodes that count, by name or address
    down NAME 1 to 9  the outages of services
    joined yes        whether a worker has joined
    lost A & B        the nodes that the attempt has lost
    members LTSS      the states of the first group's members, a letter each: loading, s(T)ale,
                      serving, dead, retired
    wants AGENT A & B what is wanted of a node
    short since TIME  since when a needed node is away
    stands WORD       how pod2 stands, as in the status

Instead of words `nothing` may stand.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from agent.decisions.head import head_state as h
from agent.decisions.shared import RAY, Answered, ItemReport, Step, StopAsked
from agent.decisions.worker import worker_state as w
from support import heads, workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent.decisions.head.head_goal import HeadGoal

Row = tuple[Any, ...]
"""A time, an event, and in words what is done about it."""
BOOT = None
"""Instead of an event: the agent starts; it begins what waits for nothing, and says what waits."""
NEXT_AGENT = "next agent"
"""Instead of an event: the agent was killed, and the next one begins, which counts from 0."""
LATER = math.inf
"""Instead of a time: only time passes, until nothing more is waited for."""


class Check(NamedTuple):
    """What is so after the steps before it."""

    what: str
    words: str


NO_NAMES: Mapping[str, Any] = {}
PLAIN = heads.goal()


def _numbers(words: str | None) -> tuple[int, ...]:
    return tuple(map(int, (words or "").split()))


def _named(name: str) -> str:
    return RAY if name == "Ray" else name


def _nodes(there: str, dead: str | None) -> h.RaySeen:
    return heads.nodes(*_numbers(there), dead=_numbers(dead))


def _report(  # noqa: PLR0913 - what a worker may say
    n: str, how: str, rank: str | None, left: str | None, refused: str | None, items: str | None
) -> h.WorkerReported:
    """Return a report: its items are `NAME STATE`, after a comma each."""
    said = [item.rpartition(" ") for item in (items or "").split(", ") if item]
    return heads.reported(
        int(n),
        joined=how == "joined",
        rank=None if rank is None else int(rank),
        has_left=left is not None,
        refused=refused or "",
        items=tuple(ItemReport(name, Step(step)) for name, _, step in said),
    )


def _silent(n: str, ray_answers: str | None, evidence: str) -> h.WorkerSilent:
    return h.WorkerSilent(f"agent{n}", evidence, ray_answers=ray_answers is not None)


def _job(status: str, code: str | None, attempt: str | None, message: str | None) -> Any:  # noqa: ANN401 - of either role
    driver = None if code is None else int(code)
    return heads.job(status, driver, message or "", int(attempt or 1))


def _item(
    step: str, name: str, generation: str | None, evidence: str | None, output: str | None
) -> Any:  # noqa: ANN401 - of either role
    of = int(generation or heads.OF_NOW)
    if step == "ready":
        return heads.ready(_named(name), of)
    if step == "pending":
        return heads.pending(_named(name), evidence or "", of)
    return heads.lost(_named(name), evidence or "", of, output=output or "")


def _own_ray(how: str, generation: str | None, evidence: str | None) -> Any:  # noqa: ANN401 - of either role
    of = int(generation or heads.OF_NOW)
    if how == "opens":
        return heads.ray_open(of)
    if how == "waits":
        return heads.ray_waits(evidence or "", of)
    return heads.ray_lost(evidence or "", generation=of)


def _doubt(beside: str | None, evidence: str | None) -> Any:  # noqa: ANN401 - of either role
    return heads.ray_doubt(evidence or "", beside_job=beside is not None)


def _of_attempt(what: str, attempt: str | None) -> Any:  # noqa: ANN401 - of either role
    builders = {"accepted": heads.accepted, "never": heads.never, "signaled": heads.signaled}
    return builders[what](int(attempt or 1))


def _refused(how: str, evidence: str) -> Any:  # noqa: ANN401 - of either role
    return heads.waits(evidence, final=how == "refuses", canceled=how == "cancels")


def _remembered(run: str, attempt: str, epoch: str | None) -> h.RunRemembered:
    return h.RunRemembered(run, int(attempt), int(epoch or 0))


def _made(attempt: str, step: str | None, saved: str | None) -> Answered:
    known = [None if one is None else int(one) for one in (saved, step)]
    return Answered(h.ProgressKnown(int(attempt), known[0], "/ckpt", known[1]))


def _asked(n: str, evidence: str) -> Answered:
    return Answered(h.NodesAsked("run-1", {f"pod{n}": evidence}))


def _reply(epoch: str | None, unready: str | None, ip: str | None, rank: str | None) -> w.HeadSpoke:
    reply = workers.replied(int(epoch or 1), ready=unready is None, ip=ip or "10.0.0.1")
    return replace(reply, rank=None if rank is None else int(rank))


def _wanted(revision: str, name: str | None, generation: str | None, by: str | None) -> w.HeadSpoke:
    names = [name] if name else []
    return workers.wanted(int(revision), *names, by=by or "head1", generation=int(generation or 1))


_GENERATION = r"(?:, generation (\d+))?"
_WHY = r"(?:: (.*))?"
_AGAIN = r"(?: (\d+))?"
FORMS: dict[str, Callable[..., Any]] = {
    # of either role
    r"tick": lambda: heads.TICK,
    r"TERM": lambda: heads.TERM,
    r"INT": lambda: heads.INT,
    r"stop by request": lambda: StopAsked(15, on_request=True),
    r"boot": lambda: BOOT,
    rf"(ready|lost|pending) ([^:,]+){_GENERATION}(?:: (.*?))?(?:, printed: (.*))?": _item,
    # of the head: nodes and their agents
    r"no Ray": lambda: heads.nodes(up=False),
    r"nodes((?: \d+)*)(?:,? dead((?: \d+)+))?": _nodes,
    r"pod(\d+) (joined|reports)(?: as (\d+))?(, has left)?(?:, refused \((.*)\))?(?:: (.*))?": (
        _report
    ),
    r"pod(\d+) silent(, its Ray answers)?: (.*)": _silent,
    r"pod(\d+) replaced": lambda n: h.WorkerReplaced(f"agent{n}"),
    r"all nodes answer": lambda: Answered(h.NodesAsked("run-1")),
    r"pod(\d+) does not answer: (.*)": _asked,
    # of the head: its Ray, its job and its run
    rf"Ray (opens|waits|dies){_GENERATION}{_WHY}": _own_ray,
    rf"Ray hangs( beside the job)?{_WHY}": _doubt,
    r"Ray goes on": heads.ray_doubt,
    rf"(accepted|never|signaled){_AGAIN}": _of_attempt,
    rf"job ([A-Z]+)(?: (-?\d+))?(?:, attempt (\d+))?{_WHY}": _job,
    r"Ray (delays|refuses|cancels) it: (.*)": _refused,
    r"remembered (\S+) (\d+)(?:, epoch (\d+))?": _remembered,
    r"made (\d+)(?:, step (\d+))?(?:, saved (\d+))?": _made,
    r"saved: (.*)": heads.saved,
    r"next agent": lambda: NEXT_AGENT,
    # of a worker
    r"reply(?: (\d+))?(, not ready)?(?:, at (\S+))?(?:, rank (\d+))?": _reply,
    r"GCS alone": lambda: workers.replied(epoch=None),
    r"silent": lambda: workers.SILENT,
    r"silent: (.*)": w.HeadSilent,
    r"wanted (\d+)(?: ([^,]+))?(?:, generation (\d+))?(?:, by (\S+))?": _wanted,
}
_CONTINUED = " " * 8
_GOALS: dict[str, dict[str, bool]] = {
    "no job": {"job": False},
    "prepares": {"prepare": True},
    "given Ray": {"given": True},
}
_MACROS: dict[str, str] = {
    "alone": "3 nodes -> submit run-1 | 4 accepted | 5 job RUNNING",
    "joins": "2 reply -> start Ray | 8 ready Ray",
    "served": ("3 nodes | 5 ready reward server -> submit run-1 | 6 accepted | 7 job RUNNING"),
    "pair": "3 nodes 2 -> submit run-1 | 4 pod2 joined | 5 accepted | 6 job RUNNING",
}
"""Steps for several: the job runs on the head alone, with a worker, or with a reward server."""


def event_of(words: str, names: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of either role
    """Return the event that words stand for."""
    if words in names:
        return names[words]
    for form, build in FORMS.items():
        if found := re.fullmatch(form, words):
            return build(*found.groups())
    raise AssertionError(f"no event is: {words}")


def rows_of(text: str, names: Mapping[str, Any] = NO_NAMES) -> Iterator[Row | Check]:
    """Yield the steps of a text."""
    for step in (part.strip() for part in text.split("|")):
        if step in _MACROS:
            yield from rows_of(_MACROS[step])
            continue
        if step in names:
            known = names[step]
            yield from rows_of(known, names) if isinstance(known, str) else known
            continue
        head, _, rest = step.partition(" ")
        if not re.match(r"\d|later", head):
            yield Check(head, rest)
            continue
        words, _, done = rest.partition("->")
        expected = (one.strip() for one in done.split("&")) if done else ()
        at = LATER if head == "later" else float(head)
        yield (at, event_of(words.strip(), names), *expected)


def _goal(words: str, names: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of either role
    """Return the goal in brackets, as `2 workers, 1 retries, given Ray`, or by its name."""
    if words in names:
        return names[words]
    asked: dict[str, Any] = {}
    for word in filter(None, words.split(", ")):
        number = re.fullmatch(r"(?:(\d+) (worker|retr)\w*|at least (\d+))", word)
        if number:
            count, of, fewest = number.groups()
            asked[{"worker": "workers", "retr": "retries"}.get(of, "least")] = int(count or fewest)
        elif word in heads.SPECS:
            asked["services"] = (*asked.get("services", ()), word)
        else:
            asked |= _GOALS[word]
    return heads.goal(**asked)


def cases(
    text: str,
    names: Mapping[str, Any] = NO_NAMES,
    plain: HeadGoal | w.WorkerGoal = PLAIN,
) -> dict[str, list[Any]]:
    """Return the cases of a table by their titles: a goal and a history each."""
    found: dict[str, list[Any]] = {}
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    histories = "\n".join(lines).replace(f"\n{_CONTINUED}", " ")
    for case in re.split(r"\n(?=\S)", histories):
        header, *steps = case.splitlines()
        title, _, goal = header.partition(" [")
        assert title not in found, title
        rows = [row for step in steps for row in rows_of(step, names)]
        found[title] = [_goal(goal.removesuffix("]"), names) if goal else plain, *rows]
    return found
