"""Which moments of a run are worth a message to its user, and the sentence of each.

`notices_of` compares a head's status with what was sent before. The judgment is that of
glance.py. The head looks at intervals, and run/notify.py sends.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from agent.base.text import duration_text
from agent.base.value import Value
from agent.decisions.head.head_state import HeadPhase
from agent.port.glance import SIGNS, cost_notice, glance_of, money, state_of_end

if TYPE_CHECKING:
    from agent.base.ends import Outcome
    from agent.port.status_model import HeadStatus

Moment = Literal["start", "loss", "stall", "advice", "cost", "end"]

LONGEST_CONTENT = 2000  # characters that Discord accepts in `content`
STARVED = 60.0  # seconds without a member that serves, from which a message is sent
_MENTION = re.compile(r"@(?=everyone|here)|<(?=[!@#])")  # in Discord, in Slack
_URL = re.compile(r"https?://[^\s()]+")


class Notice(Value):
    """One message: the moment, its sentence, and why or what comes next."""

    moment: Moment
    sign: str  # of the judgment: ●, ▲ or ■
    sentence: str
    reason: str

    def to_json(self, run_id: str, title: str, page: str) -> dict[str, str]:
        """Return the body of its request; `page` says how to open the run's page."""
        # A log line that it quotes must not call everybody of a channel.
        text = _MENTION.sub("\\g<0>\u200b", f"{self.sign} {title}: {self.sentence}")
        content = text
        if len(content) > LONGEST_CONTENT:
            content = content[: LONGEST_CONTENT - 1] + "…"
        url = _URL.search(page)
        return {
            "text": text,
            "content": content,
            "run": run_id,
            "state": self.moment,
            "reason": _MENTION.sub("\\g<0>\u200b", self.reason),
            "url": "" if url is None else url[0],
        }


class Noticed(Value):
    """What was sent of a run so far."""

    started: int = 0  # the last attempt whose start was
    ended: int = 0  # the last attempt whose end was
    stalled: int = 0  # the last attempt whose stall was
    is_losing: bool = False  # the missing nodes were
    is_starved: bool = False  # that nothing of a group serves was
    is_advised: bool = False  # the advice to end the run was
    has_lost_reward: bool = False  # the reward that was lost was
    has_cost: bool | None = None  # whether the last notice about AGENT_MAX_COST had a cost


def first_noticed(status: HeadStatus) -> Noticed:
    """Return what earlier agents of the run have sent, by the first status of this one."""
    ended = [attempt.number for attempt in status.attempts if attempt.end]
    last = max(ended, default=0)
    is_resumed = status.phase not in {HeadPhase.BOOTING, HeadPhase.SUBMITTING}
    started = status.job.attempt if status.job is not None and is_resumed else last
    return Noticed(started=started, ended=last)


def notices_of(before: Noticed, status: HeadStatus) -> tuple[Noticed, tuple[Notice, ...]]:
    """Return what there is to send since, and what was then sent; an end is sent by itself."""
    job = status.job
    if status.verdict is not None or job is None:
        return before, ()
    after = before
    notices = []

    # Was an attempt lost, after which another one follows?
    ended = [attempt for attempt in status.attempts if attempt.end]
    if ended and ended[-1].number > before.ended:
        number = ended[-1].number
        reason = ended[-1].reason
        what = f"attempt {number} of {status.attempts_allowed} was lost: {reason}."
        notices.append(Notice("loss", SIGNS["look"], what, reason))
        after = replace(after, ended=number)

    # Is most of the money used, or its limit without effect?
    about_cost = cost_notice(status)
    has_cost = status.cost is not None
    if about_cost is not None and has_cost is not before.has_cost:
        notices.append(Notice("cost", SIGNS["look"], *about_cost))
        after = replace(after, has_cost=has_cost)

    # All others are moments of a running job.
    if status.phase is not HeadPhase.RUNNING:
        after = replace(after, is_losing=False, is_advised=False, has_lost_reward=False)
        after = replace(after, is_starved=False)
        return after, tuple(notices)
    attempt = job.attempt
    if attempt > before.started:
        nodes = 1 + sum(node.joined for node in status.nodes)
        on_nodes = "one node" if nodes == 1 else f"{nodes} nodes"
        what = f"attempt {attempt} of {status.attempts_allowed} runs on {on_nodes}."
        notices.append(Notice("start", SIGNS["keep"], f"{job.name}, {what}", ""))
        after = replace(after, started=attempt)

    # Is a needed node missing? Other troubles do not hide that.
    is_losing = status.loss_seconds_left is not None
    if is_losing and not before.is_losing:
        notices.append(_notice("loss", replace(status, stall=None, advice=())))

    # Has nothing of a group served for a while? A restart may be over within it.
    is_starved = any(
        service.nothing_since is not None and status.seconds >= service.nothing_since + STARVED
        for group in status.groups
        for service in group.services
    )
    if is_starved and not before.is_starved:
        notices.append(_notice("loss", replace(status, stall=None, advice=())))
    after = replace(after, is_starved=is_starved)

    # Does the job hang, or should it be ended for another reason?
    has_stalled = status.stall is not None
    if has_stalled and attempt > before.stalled:
        notices.append(_notice("stall", replace(status, advice=())))
        after = replace(after, stalled=attempt)
    without_stall = replace(status, stall=None)
    is_advised = glance_of(without_stall).state == "end"
    if is_advised and not before.is_advised:
        notices.append(_notice("advice", without_stall))

    # Did a server or an engine fail, so that further steps teach nothing?
    lost = [advice for advice in status.advice if advice.is_reward_lost]
    if lost and not before.has_lost_reward:
        what = lost[0].what
        sentence = f"{what[:1].upper()}{what[1:]}."
        notices.append(Notice("advice", SIGNS["look"], sentence, lost[0].remedy))
    after = replace(after, is_losing=is_losing, is_advised=is_advised, has_lost_reward=bool(lost))
    return after, tuple(notices)


def notice_of_end(outcome: Outcome, seconds: float, cost: float | None) -> Notice:
    """Return the message of a run's end."""
    state = state_of_end(outcome)
    spent = f"after {duration_text(seconds)}"
    if cost is not None:
        spent += f" and {money(cost)}"
    what = f"{outcome.headline}, {spent} (exit code {outcome.exit_code})."
    return Notice("end", SIGNS[state], what, outcome.reason)


def _notice(moment: Moment, status: HeadStatus) -> Notice:
    glance = glance_of(status)
    return Notice(moment, SIGNS[glance.state], glance.sentence, glance.details)
