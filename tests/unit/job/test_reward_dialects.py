"""The dialects of the bundled reward server: each framework's client gets its own format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.job.services import reward_service
from agent.settings.jobs import BY_NAME
from support.reward_process import RewardProcess, ask, reward_server
from support.worlds import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server() -> Iterator[RewardProcess]:
    """One server for the tests that only ask."""
    with reward_server() as process:
        yield process


def test_openrlhf_ms_replies_hold_only_lists() -> None:
    """It turns every key into a tensor; it sends labels of null, and has its own reward's keys."""
    with reward_server("--dialect", "openrlhf-m") as server:
        asked = {"query": ["7", "no idea"], "prompts": ["3+4?", "3+4?"], "labels": [7, None]}
        body = ask(server.url, asked).body
    assert body == {
        "rewards": [1.0, 0.0],
        "format_rewards": [1.0, 0.0],
        "acc_rewards": [1.0, 0.0],
    }


@pytest.mark.parametrize(
    ("label", "reward"), [("7", 1.0), (7, 1.0), ("8", 0.0), (None, 0.0)], ids=str
)
@pytest.mark.parametrize("prompt", ["3+4?", [{"role": "user", "content": "3+4?"}], None], ids=str)
def test_slime_gets_a_bare_number(
    server: RewardProcess, prompt: object, label: object, reward: float
) -> None:
    """Slime and miles send one sample, and take the whole reply for its reward."""
    asked = {"prompt": prompt, "response": "it is 7", "label": label}
    reply = ask(server.url, asked)
    assert [reply.status, reply.body] == [200, reward]


@pytest.mark.parametrize(
    ("field", "wrong"), [("response", 7), ("response", ["7"]), ("label", True), ("label", [7])]
)
def test_slimes_mistakes_are_named(server: RewardProcess, field: str, wrong: object) -> None:
    """A field of the wrong form is 400, by its own name."""
    reply = ask(server.url, {"prompt": "3+4?", "response": "7", "label": "7", field: wrong})
    assert reply.status == 400
    assert reply.body["error"].endswith(f"at `$.{field}`")


@pytest.mark.parametrize("job", BY_NAME)
def test_the_plan_chooses_the_dialect(job: str) -> None:
    """OpenRLHF-M has one of its own; everybody else takes the server's first."""
    settings = replace(settings_of({}), job=job, reward="builtin")
    service = reward_service(settings, None)
    assert service is not None
    assert service.argv is not None
    dialect_args = service.argv[service.argv.index("--path") + 2 :]
    assert dialect_args == (("--dialect", "openrlhf-m") if job == "openrlhf-m-grpo" else ())
