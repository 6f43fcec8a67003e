"""verl's reward function against real servers: busy, failing, and with wrong replies."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import sys
import time

import pytest

from agent.bundled import verl_reward
from agent.frameworks.verl import REWARD_FUNCTION
from support.fake_server import Answer, Asked, fake_server
from support.reward_process import ROOT, reward_server
from support.worlds import SECRET

pytestmark = pytest.mark.anyio
TOKEN = "AGENT_REWARD_TOKEN"  # noqa: S105 - the name of the variable


async def score(url: str, text: str = r"\boxed{4}", truth: object = "4", **more: float) -> float:
    """Score one answer as verl does."""
    info = {"question": "What is 2+2?", "index": 3, "num_turns": None}
    keywords = {"within": 30.0, "parallel": 64, **more}
    return await verl_reward.compute_score(
        data_source="gsm8k",
        solution_str=text,
        ground_truth=truth,
        extra_info=info,
        url=url,
        within=keywords["within"],
        parallel=int(keywords["parallel"]),
    )


@pytest.mark.processes
def test_the_recipe_names_this_file() -> None:
    """The recipe's path is this file, and it loads without the agent."""
    assert verl_reward.__file__ == REWARD_FUNCTION
    code = (
        "import importlib.util, inspect, sys; sys.modules['agent'] = None\n"
        f"spec = importlib.util.spec_from_file_location('custom', {REWARD_FUNCTION!r})\n"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        "assert inspect.iscoroutinefunction(module.compute_score)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent)


@pytest.mark.processes
async def test_the_bundled_server_scores() -> None:
    """Right answers score 1, wrong ones 0, concurrently."""
    texts = [f"It is \\boxed{{{number}}}." for number in range(200)]
    with reward_server() as server:
        rewards = await asyncio.gather(*(score(server.url, text, "7") for text in texts))
    assert rewards == [float(number == 7) for number in range(200)]


@pytest.mark.processes
async def test_the_token_of_the_server_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the job's environment; without it, or with another, the refusal is the reason."""
    with reward_server(env={TOKEN: SECRET}) as server:
        monkeypatch.setenv(TOKEN, SECRET)
        assert await score(server.url) == 1.0
        for wrong in ("", "another"):
            monkeypatch.setenv(TOKEN, wrong)
            vars(verl_reward)["_server"].cache_clear()
            with pytest.raises(RuntimeError, match=r"refuses to score: 401 .*AGENT_REWARD"):
                await score(server.url)


@pytest.mark.parametrize(
    ("truth", "sent"),
    [
        ("#### 4", "#### 4"),
        (4, 4),
        (None, None),
        (math.inf, "Infinity"),
        (10**400, str(10**400)),
        (True, "true"),
        ([1, 2], "[1, 2]"),
        ({"é": 1}, '{"é": 1}'),
    ],
)
async def test_ground_truths_in_requests(truth: object, sent: object) -> None:
    """Any ground truth is sent as text, a number or null."""
    with fake_server(lambda _asked: Answer({"rewards": [0.5]})) as server:
        assert await score(f"{server.url}/get_reward", "text", truth) == 0.5
    (asked,) = server.asked
    assert asked.path == "/get_reward"
    assert asked.body == {"query": ["text"], "prompts": ["What is 2+2?"], "labels": [sent]}


@pytest.mark.processes
async def test_an_overloaded_server_ends_the_job() -> None:
    """The error comes within the limit and contains the server's reply; no answer gets 0."""
    begun = time.monotonic()
    busy = pytest.raises(RuntimeError, match="no rewards yet, retry")
    with reward_server("--limit", "0.0000001") as server, busy as error:
        await score(server.url, within=3)
    assert time.monotonic() - begun < 6
    assert "AGENT_REWARD" in str(error.value)


@pytest.mark.processes
async def test_a_restarted_server_changes_no_reward() -> None:
    """If the server is killed and restarted on its port, every answer gets its own reward."""
    with reward_server() as first:
        assert await score(first.url) == 1
        first.stop(signal.SIGKILL)
    truths = ("4", "5") * 20
    waiting = [asyncio.ensure_future(score(first.url, truth=truth)) for truth in truths]
    done, _ = await asyncio.wait(waiting, timeout=0.5)
    assert not done
    with reward_server("--port", str(first.port)):
        assert await asyncio.gather(*waiting) == [1.0, 0.0] * 20


@pytest.mark.processes
async def test_a_lost_server_fails_every_request() -> None:
    """The error names the server; the first one, within the limit, ends the job."""
    with reward_server() as server:
        server.stop(signal.SIGKILL)
    begun = time.monotonic()
    tasks = [score(server.url, within=1, parallel=4) for _ in range(8)]
    with pytest.raises(RuntimeError):
        await asyncio.gather(*map(asyncio.ensure_future, tasks[:4]))
    assert time.monotonic() - begun < 4
    results = await asyncio.gather(*tasks[4:], return_exceptions=True)
    assert {type(result) for result in results} == {RuntimeError}
    for words in (server.url, "no rewards for", "pod-agent status"):
        assert words in str(results[0])


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b'{"rewards": [NaN]}', 200, "not `rewards` with 1 finite numbers"),
        (b'{"error": "labels[0]: expected"}', 422, r"422 .*labels\[0\]"),
    ],
)
async def test_an_invalid_reply_is_not_a_reward(body: bytes, status: int, said: str) -> None:
    """It ends the job with a class of Python's own, which Ray's driver can load."""
    with (
        fake_server(lambda _asked: Answer(body, status)) as server,
        pytest.raises(RuntimeError, match=said) as error,
    ):
        await score(server.url)
    assert type(error.value) is RuntimeError
    assert len(server.asked) == 1


async def test_concurrent_requests_are_limited() -> None:
    """No more requests than `parallel` are open, whatever the number of answers."""
    with fake_server(lambda _asked: Answer({"rewards": [1]}, after=0.01)) as server:
        rewards = await asyncio.gather(*(score(server.url, parallel=5) for _ in range(60)))
    assert rewards == [1.0] * 60
    assert server.most_at_once == 5


async def test_credentials_of_the_url_are_sent_and_not_logged() -> None:
    """The server gets them as a header; the error has neither them nor the query."""

    def refused(asked: Asked) -> Answer:
        return Answer(asked.headers["Authorization"][:6].encode(), 403)

    with fake_server(refused) as server:
        place = f"127.0.0.1:{server.port}/r"
        refusal = f"http://{place} refuses to score: 403 Basic"
        with pytest.raises(RuntimeError, match=refusal) as error:
            await score(f"http://me:hidden@{place}?key=hidden")
    assert "hidden" not in str(error.value)
