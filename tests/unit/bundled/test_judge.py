"""The judge behind the bundled reward server: requests, grades, failures, limits and cost."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import pytest

from agent.bundled import judge as judges
from agent.bundled.judge import GivenGrade, Judge, JudgeSpec, NoGradeError
from agent.bundled.reward_server import KEY_VARIABLE, OPENRLHF_M, reply_of_judge
from agent.job.services import Placeholders, ScoringProbe
from agent.processes.probing import REWARD_REQUEST, ReadinessProbe, send_request
from support.fake_server import Answer, Asked, FakeServer, by_turns, fake_server
from support.free_ports import free_port
from support.judge_server import chat, classes, judge_server, judging, posted, right_if_equal
from support.reward_process import Reply, ask, reward_server
from support.worlds import SECRET

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from agent.bundled.judge import ScoredItem

PROBE = json.dumps(REWARD_REQUEST)
RIGHT: ScoredItem = ("What is 1+1? It is 2", "What is 1+1?", "2")
WRONG: ScoredItem = ("What is 1+1? It is 3", "What is 1+1?", "2")


def numbered(count: int) -> list[ScoredItem]:
    """Return different answers; those with a 1 are right."""
    return [(f"It is {number}", "", "1") for number in range(count)]


@asynccontextmanager
async def asking(
    url: str,
    key: str = "",
    say: Callable[[str], None] = lambda _line: None,
    **spec: Any,  # noqa: ANN401 - its fields
) -> AsyncIterator[Judge]:
    """Yield what asks the judges at these URLs; end its requests afterwards."""
    judge = Judge(JudgeSpec(url, **spec), key, say)
    try:
        yield judge
    finally:
        await judge.close()


def graded(
    url: str,
    *items: ScoredItem,
    key: str = "",
    **spec: Any,  # noqa: ANN401 - its fields
) -> tuple[list[GivenGrade], Judge]:
    """Return the verdicts on these items, and the judge."""

    async def run() -> tuple[list[GivenGrade], Judge]:
        async with asking(url, key, **spec) as judge:
            return await judge.grade(items), judge

    return anyio.run(run)


def failure(
    url: str,
    key: str = "",
    **spec: Any,  # noqa: ANN401 - its fields
) -> str:
    """Return why there is no grade."""
    with pytest.raises(NoGradeError) as raised:
        graded(url, RIGHT, key=key, **spec)
    return str(raised.value)


def test_a_chat_is_asked_for_each_grade() -> None:
    """With the first listed model, and the prompt, the answer and the label in the template."""
    with judge_server() as server:
        verdicts, judge = graded(server.url, RIGHT, WRONG)
    assert verdicts == [GivenGrade(1.0), GivenGrade(0.0)]
    (first,) = [one for one in posted(server) if "It is 2" in one.body["messages"][0]["content"]]
    assert first.path == "/v1/chat/completions"
    assert first.body["model"] == "judge-model"
    assert (first.body["temperature"], first.body["max_tokens"]) == (0.0, 1024)
    text = first.body["messages"][0]["content"]
    for part in ("Question:\nWhat is 1+1?\n", "Reference answer:\n2\n", "to grade:\n It is 2\n"):
        assert part in text
    assert "Authorization" not in first.headers
    assert (judge.totals.requests, judge.totals.prompt_tokens) == (2, 80)
    assert judge.totals.completion_tokens == 6


def test_a_template_is_filled_once() -> None:
    """Braces in an answer are no placeholders; what is missing is named so."""
    with judge_server(lambda _: chat("A: yes")) as server:
        item = ("{label} {prompt}", None, None)
        spec: dict[str, Any] = {"template": "{query}|{label}|{x}", "grade": "A: (yes|no)"}
        spec["values"] = {"Yes": 2.0}
        verdicts, _ = graded(f"{server.url}/v1/", item, model="mine", options={"n": 1}, **spec)
    assert verdicts == [GivenGrade(2.0)]
    (asked,) = posted(server)
    assert asked.path == "/v1/chat/completions"
    assert asked.body == {
        "n": 1,
        "model": "mine",
        "messages": [{"role": "user", "content": "{label} {prompt}|(none)|{x}"}],
    }


CHAT = "/v1/chat/completions"
REWARD_MODEL = Answer([{"embedding": [3.25], "meta_info": {}}])
PAIR = Answer({"object": "list", "data": [{"index": 0, "score": 0.25}]})
PAIR_BY_TOKENS = Answer({"scores": [[0.1, 0.9]], "object": "scoring"})
LABELS = {"label_token_ids": [9, 10]}
PATH = {"path": "/v1/classify", "template": "{prompt}|{answer}"}
QUERY, PROMPT, _ = RIGHT


@pytest.mark.parametrize(
    ("api", "spec", "reply", "path", "body", "grade"),
    [
        ("chat", {}, chat("Grade: 0.2, no: **Grade:** **0.75**"), CHAT, {}, 0.75),
        ("chat", {}, chat("Grade: 1"), CHAT, {}, 1.0),
        ("chat", {}, chat("Grade:.5"), CHAT, {}, 0.5),
        ("classify", {}, classes(0.3, 0.7), "/classify", {"input": QUERY}, 0.7),
        ("classify", {"at": 0}, classes(0.3, 0.7), "/classify", {"input": QUERY}, 0.3),
        ("classify", PATH, classes(-1.5), "/v1/classify", {"input": f"{PROMPT}| It is 2"}, -1.5),
        ("classify", {}, REWARD_MODEL, "/classify", {"input": QUERY}, 3.25),
        ("score", {}, PAIR, "/v1/score", {"text_1": PROMPT, "text_2": " It is 2"}, 0.25),
        (
            "score",
            {"options": {**LABELS, "apply_softmax": True}},
            PAIR_BY_TOKENS,
            "/v1/score",
            {**LABELS, "query": PROMPT, "items": [" It is 2"]},
            0.9,
        ),
    ],
)
def test_the_grade_in_a_reply(  # noqa: PLR0913 - a row of a table
    api: str, spec: dict[str, Any], reply: Answer, path: str, body: dict[str, Any], grade: float
) -> None:
    """The last of a chat; VLLM's and SGLang's classification, reward models and pairs."""
    with judge_server(lambda _: reply) as server:
        verdicts, _ = graded(server.url, RIGHT, api=api, model="m", **spec)
    assert verdicts == [GivenGrade(grade)]
    (asked,) = posted(server)
    assert asked.path == path
    assert body.items() <= asked.body.items()


NO_CHAT = "no choices[0].message.content"
NO_NUMBERS = "its reply has no probs, score, scores or embedding"


@pytest.mark.parametrize(
    ("api", "reply", "words"),
    [
        ("chat", chat("no idea"), "no text of its reply matches ask.grade; its end: no idea"),
        ("chat", chat(None), "its reply has no text: raise max_tokens in ask.options"),
        ("chat", chat("Grade: 95"), "its grade 95 is not from 0 to 1"),
        ("chat", Answer({"choices": []}), NO_CHAT),
        ("chat", Answer({"choices": {"0": 1}}), NO_CHAT),
        ("chat", Answer([]), NO_CHAT),
        ("chat", Answer(b"<html>\x00oops"), "its reply is no JSON: <html>"),
        ("chat", Answer(b"[" * 100_000), "its reply is no JSON"),
        ("chat", Answer(b"{" + b" " * (2 << 20)), "its reply is longer than"),
        ("chat", Answer({"error": "too long"}, 400), "it answered 400"),
        ("chat", Answer(b"", 500), "it answered 500: nothing"),
        ("chat", Answer(b"", 408), "it answered 408: nothing (1 tries)"),
        ("chat", Answer(b"", 501), "it answered 501"),
        ("chat", Answer(b"late", 504), "it answered 504: late (1 tries)"),
        ("chat", Answer(b"", 529), "it answered 529"),
        ("chat", Answer({"error": "key"}, 401), "is AGENT_JUDGE_KEY right?"),
        ("chat", Answer({"error": "model"}, 404), "are ask.path and ask.model right?"),
        ("chat", Answer(b"", 307, {"Location": "http://10.9.9.9/"}), "it redirects (307)"),
        ("classify", Answer({"data": []}), NO_NUMBERS),
        ("classify", Answer({"data": [{"probs": []}]}), "has 0 number(s), not ask.class = -1"),
        ("classify", Answer({"data": [{"probs": [True]}]}), NO_NUMBERS),
        ("classify", Answer({"data": [{"probs": ["0.5"]}]}), NO_NUMBERS),
        ("classify", Answer({"data": [{}]}), NO_NUMBERS),
        ("classify", Answer({"scores": None}), NO_NUMBERS),
        ("classify", Answer(b'{"data": [{"probs": [1e999]}]}'), "its reply is no JSON"),
        ("classify", Answer(b'{"data": [{"probs": [NaN]}]}'), "its reply is no JSON"),
    ],
)
def test_a_reply_without_a_grade_is_no_zero(api: str, reply: Answer, words: str) -> None:
    """Whatever it is, the batch fails with a sentence that says what was answered."""
    with judge_server(lambda _: reply) as server:
        assert words in failure(server.url, api=api, tries=1)


def test_a_judge_that_fails_is_asked_again() -> None:
    """A busy one after a pause; one without a grade at another temperature."""
    turns = by_turns(Answer(b"busy", 503), chat("hm"), chat("Grade: 0.5"))
    with judge_server(turns) as server:
        verdicts, judge = graded(server.url, RIGHT)
    assert verdicts == [GivenGrade(0.5)]
    assert [asked.body["temperature"] for asked in posted(server)] == [0.0, 0.0, 0.7]
    assert judge.totals.requests == 3


def test_a_wrong_key_is_not_tried_again_nor_repeated() -> None:
    """A server that sends it back does not bring it into the sentence."""

    def echo(asked: Asked) -> Answer:
        return Answer({"error": asked.headers["Authorization"]}, 401)

    with judge_server(echo) as server:
        sentence = failure(server.url, key=SECRET)
    assert len(posted(server)) == 1
    assert posted(server)[0].headers["Authorization"] == f"Bearer {SECRET}"
    assert SECRET not in sentence
    assert "Bearer ********" in sentence


def test_a_judge_that_is_slow() -> None:
    """The deadline of a request holds: it counts where the judge answers other requests."""
    with judge_server(lambda _: Answer(b"", after=1.0)) as server:
        assert "no answer within 0.2 s (2 tries)" in failure(server.url, within=0.2, tries=2)


# --- judges that are away -------------------------------------------------------------------------


class Held(NamedTuple):
    """A batch that is held for a judge, and what is logged."""

    judge: Judge
    batch: asyncio.Future[list[GivenGrade]]
    said: list[str]


@asynccontextmanager
async def held(url: str, within: float = 60.0) -> AsyncIterator[Held]:
    """Send a batch, and yield it once it is held."""
    said: list[str] = []
    async with asking(url, say=said.append, tries=1, model="m", within=within) as judge:
        batch = asyncio.ensure_future(judge.grade([RIGHT]))
        with anyio.fail_after(10):
            while not said:
                assert not batch.done()
                await asyncio.sleep(0.02)
        yield Held(judge, batch, said)
        batch.cancel()
        await asyncio.gather(batch, return_exceptions=True)


@pytest.mark.anyio
@pytest.mark.parametrize("away", ["down", "busy", "frozen"])
async def test_a_batch_is_held_until_the_judge_is_back(
    monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """Down, without room, or frozen: none of that is a try, and each is logged once."""
    monkeypatch.setattr(judges, "_LIVENESS_LIMIT", 0.2)
    monkeypatch.setattr(judges, "_DOWN_PAUSE", 0.05)
    monkeypatch.setattr(judges, "_SHORTEST_PAUSE", 0.05)
    is_back = threading.Event()

    def answer(asked: Asked) -> Answer:
        if is_back.is_set():
            return judging(right_if_equal)(asked)
        is_busy = away == "busy"
        return Answer(b"", 503, {"Retry-After": "0"}) if is_busy else Answer(b"", after=1.0)

    port = free_port()
    with ExitStack() as stack:
        if away != "down":
            stack.enter_context(FakeServer(answer, "127.0.0.1", port).running())
        async with held(f"http://127.0.0.1:{port}", within=0.2) as one:
            await asyncio.sleep(1.0)  # several rounds
            assert len(one.said) == 1
            assert "requests are held until it answers: the judge at" in one.said[0]
            is_back.set()
            if away == "down":
                stack.enter_context(FakeServer(answer, "127.0.0.1", port).running())
            with anyio.fail_after(10):
                assert await one.batch == [GivenGrade(1.0)]
            assert "answers again after" in one.said[1]


@pytest.mark.anyio
async def test_a_long_outage_of_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause stays within its limit, however many requests were held through it."""
    requests = 0
    async with asking("http://127.0.0.1:1", model="m", parallel=64) as judge:

        async def refuse(*_: object) -> None:
            nonlocal requests
            requests += 1
            if requests == 2_000:
                judge.use("")
            await asyncio.sleep(0)
            raise judges._AwayError("down", 0.0, 0.0)  # noqa: SLF001 - as a refused connection

        monkeypatch.setattr(judge, "_request", refuse)
        with pytest.raises(NoGradeError, match="given up"), anyio.fail_after(30):
            await judge.grade(numbered(64))


def test_a_burst_without_room_is_one_failure() -> None:
    """Thirty-two requests that are refused together hold the judge off once, for a second."""
    turns = by_turns(*[Answer(b"", 429)] * 32, chat("Grade: 1"))
    lock = threading.Lock()

    def answer(asked: Asked) -> Answer:
        with lock:
            return turns(asked)

    with judge_server(answer) as server:
        began = time.monotonic()
        verdicts, _ = graded(server.url, *numbered(32), model="m")
        assert time.monotonic() - began < 10
    assert len(verdicts) == 32


@pytest.mark.anyio
@pytest.mark.parametrize("status", [408, 501])
async def test_a_text_that_always_fails_holds_no_other(status: int) -> None:
    """The judge grades the others, and its batch fails after its tries or at once."""

    def poisoned(asked: Asked) -> Answer:
        is_poison = "poison" in asked.body["messages"][0]["content"]
        return Answer(b"", status) if is_poison else right_if_equal(asked)

    with judge_server(poisoned) as server, anyio.fail_after(10):
        async with asking(server.url, tries=2) as judge:
            with pytest.raises(NoGradeError, match=f"it answered {status}"):
                await judge.grade([("poison", None, None)])
            assert judge.why_away == ""
            assert await judge.grade([RIGHT]) == [GivenGrade(1.0)]


@pytest.mark.anyio
@pytest.mark.parametrize("seconds", ["0", "86400", "9" * 400, "Fri, 01 Jan 2100 00:00:00 GMT"])
async def test_a_pause_that_the_judge_asks_for_has_limits(seconds: str) -> None:
    """It is half a second to twenty; another address is asked at once."""
    refusal = Answer(b"", 503, {"Retry-After": seconds})
    with judge_server(lambda _: refusal) as busy, judge_server() as other:
        async with held(busy.url) as one:
            (server,) = one.judge._servers  # noqa: SLF001 - no log shows it
            assert 0.0 < server.away_until - time.monotonic() <= 20.0
            one.judge.use(other.url)
            with anyio.fail_after(5):
                assert await one.batch == [GivenGrade(1.0)]


@pytest.mark.anyio
async def test_a_judge_that_hangs_slows_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets one request at a time until it replies; then it grades again."""
    monkeypatch.setattr(judges, "_LIVENESS_LIMIT", 0.2)
    hangs = threading.Event()
    hangs.set()

    def brief(asked: Asked) -> Answer:
        return right_if_equal(asked)._replace(after=0.02)

    def hanging(asked: Asked) -> Answer:
        return Answer(b"", after=1.0) if hangs.is_set() else judging(brief)(asked)

    items = numbered(400)
    with judge_server(brief) as good, fake_server(hanging) as bad, anyio.fail_after(30):
        urls = f"{bad.url},{good.url}"
        async with asking(urls, within=0.5, parallel=8, model="m") as judge:
            await judge.grade([items.pop() for _ in range(200)])
            asked = len(posted(bad))
            assert asked <= 8 + 4
            hangs.clear()
            while len(posted(bad)) == asked:  # until its pause is over
                await judge.grade([items.pop()])
            await judge.grade(items[:100])
        assert len(posted(bad)) >= asked + 25  # one at a time would be about 16


def test_of_several_judges_those_that_are_there_grade() -> None:
    """The one with the fewest requests does; one that is down costs no try, and holds no batch."""
    down = f"http://127.0.0.1:{free_port()}"
    with judge_server() as one, judge_server() as other:
        urls = f"{down},{one.url},{other.url}"
        verdicts, judge = graded(urls, *numbered(12), tries=1, parallel=2)
        assert len(verdicts) == 12
        assert judge.why_away == ""
        assert min(len(posted(one)), len(posted(other))) >= 4
        assert len(posted(one)) + len(posted(other)) == 12


@pytest.mark.anyio
async def test_judges_that_are_given_up_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one whose client has left; another address is asked from then on."""
    monkeypatch.setattr(judges, "_LONGEST_DOWN_PAUSE", 0.1)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with judge_server() as another:
        async with held(url) as one:
            one.judge.use("")
            with pytest.raises(NoGradeError, match="given up"), anyio.fail_after(10):
                await one.batch
            one.judge.use(another.url)
            with anyio.fail_after(10):
                assert await one.judge.grade([RIGHT]) == [GivenGrade(1.0)]

    async with held(url) as one:
        one.batch.cancel()
        await asyncio.sleep(0.4)  # longer than until it is asked again
        server = FakeServer(judging(right_if_equal), "127.0.0.1", port)
        with server.running():
            await asyncio.sleep(0.4)
        assert not server.asked


@pytest.mark.anyio
async def test_a_former_grade_is_given_again_while_the_judge_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a batch that is sent again gets its rewards."""
    monkeypatch.setattr(judges, "_FRESH", 0.0)
    monkeypatch.setattr(judges, "_RENEWAL_LIMIT", 0.2)
    async with AsyncExitStack() as stack:
        with judge_server() as server:
            judge = await stack.enter_async_context(asking(server.url))
            assert await judge.grade([RIGHT]) == [GivenGrade(1.0)]
            assert await judge.grade([RIGHT]) == [GivenGrade(1.0)]
            assert len(posted(server)) == 2
        with anyio.fail_after(10):
            assert await judge.grade([RIGHT]) == [GivenGrade(1.0)]


@pytest.mark.anyio
async def test_a_former_grade_is_for_probes_where_the_judge_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow judge gives a batch a new grade; a probe gets the former one, also for a failure."""
    monkeypatch.setattr(judges, "_FRESH", 0.0)
    monkeypatch.setattr(judges, "_RENEWAL_LIMIT", 0.1)
    with judge_server(lambda _: chat("Grade: 0")) as server:
        async with asking(server.url, tries=1) as judge:
            assert await judge.grade([RIGHT]) == [GivenGrade(0.0)]
            server.answer = judging(lambda _: chat("Grade: 1")._replace(after=0.5))
            assert await judge.grade([RIGHT], is_probe=True) == [GivenGrade(0.0)]
            assert await judge.grade([RIGHT]) == [GivenGrade(1.0)]
            server.answer = judging(lambda _: Answer(b"", 500))
            assert await judge.grade([RIGHT], is_probe=True) == [GivenGrade(1.0)]
            with pytest.raises(NoGradeError, match="it answered 500"):
                await judge.grade([RIGHT])


def test_each_judge_is_asked_for_its_own_model() -> None:
    """They may have different ones."""

    def listing(name: str) -> Callable[[Asked], Answer]:
        models = Answer({"data": [{"id": name}]})
        return lambda asked: models if asked.method == "GET" else right_if_equal(asked)

    with fake_server(listing("a")) as one, fake_server(listing("b")) as other:
        graded(f"{one.url},{other.url}", *numbered(8), parallel=1)
        assert {asked.body["model"] for asked in posted(one)} == {"a"}
        assert {asked.body["model"] for asked in posted(other)} == {"b"}


@pytest.mark.parametrize("models", [Answer(b"<html>"), Answer({"error": "x"}, 400)])
def test_an_answer_that_no_judge_saw_has_no_reward(models: Answer) -> None:
    """A list of models that cannot be read is a failure, also with `ungraded`."""
    with fake_server(lambda _: models) as server:
        assert "its list of models" in failure(server.url, ungraded=0.0, tries=1)
        assert not posted(server)


def test_as_many_at_once_as_allowed() -> None:
    """Of all batches together; the order of the grades is that of the items."""

    def slow(asked: Asked) -> Answer:
        return right_if_equal(asked)._replace(after=0.05)

    with judge_server(slow) as server:
        verdicts, _ = graded(server.url, *numbered(12), parallel=3)
    assert server.most_at_once == 3
    assert [verdict.reward for verdict in verdicts] == [float("1" in str(n)) for n in range(12)]


@pytest.mark.anyio
async def test_one_answer_without_a_grade_fails_the_batch() -> None:
    """Its others are remembered: the next try asks only for what is left."""

    def odd(asked: Asked) -> Answer:
        is_odd = "It is 3" in asked.body["messages"][0]["content"]
        return chat("?") if is_odd else right_if_equal(asked)

    with judge_server(odd) as server:
        async with asking(server.url, tries=1) as judge:
            with pytest.raises(NoGradeError):
                await judge.grade([RIGHT, WRONG])
            assert await judge.grade([RIGHT]) == [GivenGrade(1.0)]
        assert len(posted(server)) == 2


@pytest.mark.anyio
async def test_a_client_that_leaves_finds_the_grade_later() -> None:
    """A slow judge is asked once, and no client has to wait for as long as it takes."""
    with judge_server(lambda asked: right_if_equal(asked)._replace(after=0.5)) as server:
        async with asking(server.url) as judge:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(judge.grade([RIGHT]), 0.1)
            assert await judge.grade([RIGHT]) == [GivenGrade(1.0)]
        assert len(posted(server)) == 1


def test_what_the_user_sets_for_answers_without_a_grade() -> None:
    """Counted, and marked in the reply; a judge that fails still fails the batch."""
    with judge_server(lambda _: Answer({"error": "too long"}, 400)) as server:
        verdicts, judge = graded(server.url, RIGHT, ungraded=-1.0, tries=2)
    assert verdicts == [GivenGrade(-1.0, is_graded=False)]
    assert judge.totals.ungraded == 1
    with judge_server(lambda _: Answer(b"", 500)) as server:
        assert "500" in failure(server.url, ungraded=0.0, tries=1)


# --- the reward server ----------------------------------------------------------------------------


@pytest.mark.processes
def test_the_reward_server_asks_it() -> None:
    """Batches and single samples keep their form; the header has what it cost."""
    with judge_server() as judge:
        spec = json.dumps({"url": judge.url})
        with reward_server("--judge", spec, env={"AGENT_JUDGE_KEY": SECRET}) as server:
            batch: dict[str, object] = {
                "query": [RIGHT[0], WRONG[0]],
                "prompts": [RIGHT[1]] * 2,
                "labels": ["2", "2"],
            }
            reply = ask(server.url, batch)
            assert reply.body == {
                "rewards": [1.0, 0.0],
                "scores": [1.0, 0.0],
                "extra_logs": {"graded": [1.0, 1.0]},
            }
            single = ask(server.url, {"prompt": RIGHT[1], "response": RIGHT[0], "label": "2"})
            assert repr(single.body) == "1.0"
            judge.answer = judging(lambda _: chat("?"))
            failed = ask(server.url, {"query": ["other"]})
            assert failed.status == 503
            assert "no rewards yet, retry: the judge at" in failed.body["error"]
            _, log = server.stop()
    assert posted(judge)[0].headers["Authorization"] == f"Bearer {SECRET}"
    assert SECRET not in log


@pytest.mark.processes
def test_the_reward_server_holds_requests_while_the_judge_is_away() -> None:
    """Beyond --limit; a probe gets the reason, and may name another judge with the agent's key."""
    with judge_server() as judge:
        spec = json.dumps({"url": f"http://127.0.0.1:{free_port()}", "model": "m"})
        flags = ("--judge", spec, "--limit", "1")
        with (
            reward_server(*flags, env={KEY_VARIABLE: SECRET}, _PROBE_SECONDS=1.0) as server,
            ThreadPoolExecutor() as threads,
        ):
            batch: dict[str, object] = {"query": [RIGHT[0]], "labels": ["2"]}
            held = threads.submit(ask, server.url, batch)
            nodes = {"Run-Nodes": "127.0.0.1"}
            wrong = {"Run-Judges": judge.url, "Probe-Key": "guessed"}
            probe = asked_with(server.url, {**nodes, **wrong})
            assert probe.status == 503
            assert anyio.run(awaits_judge, server.url)
            assert "the judge at http://127.0.0.1" in probe.body["error"]
            assert not held.done()
            assert not judge.asked

            right = {"Run-Judges": judge.url, "Probe-Key": SECRET}
            assert asked_with(server.url, {**nodes, **right}).body["rewards"] == [1.0]
            assert held.result(20).body["rewards"] == [1.0]


async def awaits_judge(url: str) -> bool:
    """Return whether the agent's probe finds that only the judge is late."""
    nodes = ("127.0.0.1",)
    ready = ScoringProbe(url)
    probe = ReadinessProbe(ready, Placeholders(), Path("none.log"), nodes=lambda: nodes)
    assert "the judge at" in await probe.ask()
    return probe.awaits_judge


def asked_with(url: str, headers: dict[str, str]) -> Reply:
    """Send what the agent's probes send, with these headers."""
    reply = anyio.run(partial(send_request, "POST", url, 20.0, body=PROBE, headers=headers))
    assert not isinstance(reply, str)
    return Reply(reply.status, json.loads(reply.body))


def test_the_form_of_openrlhf_m() -> None:
    """Every key is a list of numbers there."""
    assert reply_of_judge([GivenGrade(0.5), GivenGrade(-1.0, is_graded=False)], OPENRLHF_M) == {
        "rewards": [0.5, -1.0],
        "format_rewards": [1.0, 0.0],
        "acc_rewards": [0.5, -1.0],
    }
