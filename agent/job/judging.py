"""The judge of AGENT_REWARD=judge: where it is, and how the bundled reward server asks it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent.base.errors import Problem
from agent.settings.rules import JUDGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.job.services import ServicesFile, ServiceSpec
    from agent.settings.model import Settings

_TABLE = "[services.judge]"


def judge_request(settings: Settings, file: ServicesFile) -> str:
    """Return what the reward server asks, as JSON for its --judge; '' without a judge."""
    if settings.reward != JUDGE:
        return ""
    spec = _judge_of(file)
    url = settings.judge_url
    if url is None:
        port = 0 if spec is None else spec.port
        url = f"http://{{address:{JUDGE}}}:{port}"
    asked = {"url": url, **file.ask}
    if settings.judge_model is not None:
        asked["model"] = settings.judge_model
    return json.dumps(asked)


def judge_problems(settings: Settings, file: ServicesFile) -> Iterator[Problem]:
    """Yield why there is no judge, or more than one."""
    table = f"AGENT_SERVICES={settings.services} {_TABLE}"
    spec = _judge_of(file)
    if settings.reward != JUDGE:
        if file.ask:
            got = f"keys of a judge, though AGENT_REWARD is {settings.reward or 'unset'}"
            yield Problem(f"{table} ask", got, f"AGENT_REWARD={JUDGE} beside them")
        return

    # Where is it?
    if settings.judge_url is not None and spec is not None:
        yield Problem(f"AGENT_JUDGE_URL + {table}", "a judge in each", "one of the two")
    elif settings.judge_url is None and spec is None:
        expected = "AGENT_JUDGE_URL, or [services.judge] with a command"
        yield Problem("AGENT_REWARD", f"{JUDGE!r} without a judge", expected)
    elif settings.judge_url is None and spec is not None:
        if spec.port is None:
            expected = "ready.http or ready.tcp, which has the port that the reward server asks"
            yield Problem(f"{table} ready", "a judge without a port", expected)
        if spec.where.kind == "workers":
            expected = "one node: the head or a rank; or every node"
            yield Problem(f"{table} where", "workers", expected)
    if settings.judge_model is not None and "model" in file.ask:
        both = f"AGENT_JUDGE_MODEL + {table} ask.model"
        yield Problem(both, "a model in each", "one of the two")


def _judge_of(file: ServicesFile) -> ServiceSpec | None:
    return next((spec for spec in file.services if spec.name == JUDGE), None)
