"""`/series`: the job's metrics by step, for those who may read a log."""

from __future__ import annotations

import pytest

from agent.base.typed import convert
from agent.job.series import SeriesPart
from support.served import Answer, Head, a_head, a_series, ask

TOKEN = "t" * 16


def asked(head: Head, query: str = "", token: str = TOKEN) -> Answer:
    """Ask for the series."""
    return ask(head.port, "GET", f"/series{query}", {"Authorization": f"Bearer {token}"})


def test_all_steps_or_those_after_one() -> None:
    """A reader that knows the first steps asks for the others."""
    with a_head(TOKEN) as head:
        assert convert(asked(head).data, SeriesPart) == a_series().part()
        assert convert(asked(head, "?since=2").data, SeriesPart) == a_series().part(2)
        assert asked(head, "?since=3").data["keys"] == {}


@pytest.mark.parametrize(
    ("token", "query", "code"),
    [("wrong", "", 401), (TOKEN, "?since=x", 400), (TOKEN, f"?since={'9' * 16}", 400)],
)
def test_refusals(token: str, query: str, code: int) -> None:
    """Names of metrics are text of the job's output."""
    with a_head(TOKEN) as head:
        assert asked(head, query, token).status == code


@pytest.mark.parametrize("caller", ["127.0.0.1", "127.0.0.2"])
def test_without_a_token_names_of_metrics_stay_on_the_node(caller: str) -> None:
    """A job may print anything as a name; numbers that the agent names itself are for all."""
    with a_head() as head:
        text = ask(head.port, "GET", "/metrics", source=caller).body.decode()
    assert "pod_agent_phase{" in text
    is_local = caller == "127.0.0.1"
    assert ('pod_agent_job_metric{name="reward"} 0.5' in text) == is_local
