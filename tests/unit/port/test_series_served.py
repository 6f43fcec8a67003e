"""`/series`: the job's metrics by step, for those who may read a log."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from agent.base.typed import convert
from agent.job.series import SeriesPart
from support.served import SECONDS, a_head, a_series

TOKEN = "t" * 16


def asked(port: int, query: str = "", token: str = TOKEN) -> dict[str, Any]:
    """Return what the port answers."""
    request = Request(f"http://127.0.0.1:{port}/series{query}")
    request.add_header("Authorization", f"Bearer {token}")
    with urlopen(request, timeout=SECONDS) as reply:  # noqa: S310 - http
        data: dict[str, Any] = json.load(reply)
        return data


def test_all_steps_or_those_after_one() -> None:
    """A reader that knows the first steps asks for the others."""
    with a_head(TOKEN) as head:
        assert convert(asked(head.port), SeriesPart) == a_series().part()
        assert convert(asked(head.port, "?since=2"), SeriesPart) == a_series().part(2)
        assert asked(head.port, "?since=3")["keys"] == {}


@pytest.mark.parametrize(
    ("token", "query", "code"),
    [("wrong", "", 401), (TOKEN, "?since=x", 400), (TOKEN, f"?since={'9' * 16}", 400)],
)
def test_refusals(token: str, query: str, code: int) -> None:
    """Names of metrics are text of the job's output."""
    with a_head(TOKEN) as head, pytest.raises(HTTPError) as refused:
        asked(head.port, query, token)
    refused.value.close()
    assert refused.value.code == code


@pytest.mark.parametrize("caller", ["127.0.0.1", "127.0.0.2"])
def test_without_a_token_names_of_metrics_stay_on_the_node(caller: str) -> None:
    """A job may print anything as a name; numbers that the agent names itself are for all."""
    with a_head() as head:
        link = http.client.HTTPConnection(
            "127.0.0.1", head.port, timeout=SECONDS, source_address=(caller, 0)
        )
        link.request("GET", "/metrics")
        text = link.getresponse().read().decode()
        link.close()
    assert "pod_agent_phase{" in text
    is_local = caller == "127.0.0.1"
    assert ('pod_agent_job_metric{name="reward"} 0.5' in text) == is_local
