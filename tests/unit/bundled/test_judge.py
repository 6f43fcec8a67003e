"""The judge behind the bundled reward server: requests, grades, failures, limits and cost."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from agent.bundled import judge as judges
from agent.bundled.judge import GRADE, GivenGrade, Judge, JudgeSpec, NoGradeError
from agent.bundled.reward_server import KEY_VARIABLE, OPENRLHF_M, main, reply_of_judge
from agent.job.services import Placeholders, ScoringProbe
from agent.processes.probing import REWARD_REQUEST, ReadinessProbe, send_request
from support.fake_server import Answer, Asked, FakeServer, by_turns, fake_server
from support.free_ports import free_port
from support.judge_server import chat, classes, judge_server, judging, posted, right_if_equal
from support.reward_process import Reply, ask, reward_server
from support.worlds import SECRET

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from agent.bundled.judge import ScoredItem

PROBE = json.dumps(REWARD_REQUEST)
RIGHT: ScoredItem = ("What is 1+1? It is 2", "What is 1+1?", "2")
WRONG: ScoredItem = ("What is 1+1? It is 3", "What is 1+1?", "2")


def graded(
    url: str,
    *items: ScoredItem,
    key: str = "",
    **spec: Any,  # noqa: ANN401 - its fields
) -> tuple[list[GivenGrade], Judge]:
    """Return the verdicts on these items, and the judge."""
    judge = Judge(JudgeSpec(url, **spec), key)

    async def run() -> list[GivenGrade]:
        try:
            return await judge.grade(items)
        finally:
            await judge.close()

    return anyio.run(run), judge


def failure(
    url: str,
    *items: ScoredItem,
    key: str = "",
    **spec: Any,  # noqa: ANN401 - its fields
) -> str:
    """Return why there are no grades."""
    with pytest.raises(NoGradeError) as raised:
        graded(url, *(items or (RIGHT,)), key=key, **spec)
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


@pytest.mark.parametrize(
    ("api", "spec", "answer", "path", "body", "grade"),
    [
        ("classify", {}, classes(0.3, 0.7), "/classify", {"input": RIGHT[0]}, 0.7),
        ("classify", {"at": 0}, classes(0.3, 0.7), "/classify", {"input": RIGHT[0]}, 0.3),
        (
            "classify",
            {"path": "/v1/classify", "template": "{prompt}|{answer}"},
            classes(-1.5),
            "/v1/classify",
            {"input": "What is 1+1?| It is 2"},
            -1.5,
        ),
        (
            "classify",
            {},
            Answer([{"embedding": [3.25], "meta_info": {}}]),
            "/classify",
            {"input": RIGHT[0]},
            3.25,
        ),
        (
            "score",
            {},
            Answer({"object": "list", "data": [{"index": 0, "score": 0.25}]}),
            "/v1/score",
            {"text_1": RIGHT[1], "text_2": " It is 2"},
            0.25,
        ),
        (
            "score",
            {"options": {"label_token_ids": [9, 10], "apply_softmax": True}},
            Answer({"scores": [[0.1, 0.9]], "object": "scoring"}),
            "/v1/score",
            {"query": RIGHT[1], "items": [" It is 2"], "label_token_ids": [9, 10]},
            0.9,
        ),
    ],
)
def test_the_engines_own_scores(  # noqa: PLR0913 - a row of a table
    api: str, spec: dict[str, Any], answer: Answer, path: str, body: dict[str, Any], grade: float
) -> None:
    """VLLM's and SGLang's classification, reward models and pairs."""
    with judge_server(lambda _: answer) as server:
        verdicts, _ = graded(server.url, RIGHT, api=api, model="m", **spec)
    assert verdicts == [GivenGrade(grade)]
    (asked,) = posted(server)
    assert asked.path == path
    assert body.items() <= asked.body.items()


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (chat("no idea"), "no text of its reply matches ask.grade; its end: no idea"),
        (chat(None), "its reply has no text: raise max_tokens in ask.options"),
        (chat("Grade: 95"), "its grade 95 is not from 0 to 1"),
        (Answer({"choices": []}), "no choices[0].message.content"),
        (Answer({"choices": {"0": 1}}), "no choices[0].message.content"),
        (Answer([]), "no choices[0].message.content"),
        (Answer(b"<html>\x00oops"), "its reply is no JSON: <html>"),
        (Answer(b"[" * 100_000), "its reply is no JSON"),
        (Answer(b"{" + b" " * (2 << 20)), "its reply is longer than"),
        (Answer({"error": "too long"}, 400), "it answered 400"),
        (Answer(b"", 500), "it answered 500: nothing"),
        (Answer(b"", 408), "it answered 408: nothing (1 tries)"),
        (Answer(b"", 501), "it answered 501"),
        (Answer(b"late", 504), "it answered 504: late (1 tries)"),
        (Answer(b"", 529), "it answered 529"),
        (Answer({"error": "key"}, 401), "is AGENT_JUDGE_KEY right?"),
        (Answer({"error": "model"}, 404), "are ask.path and ask.model right?"),
        (Answer(b"", 307, {"Location": "http://10.9.9.9/"}), "it redirects (307)"),
    ],
)
def test_a_reply_without_a_grade_is_no_zero(reply: Answer, words: str) -> None:
    """Whatever it is, the batch fails with a sentence that says what was answered."""
    with judge_server(lambda _: reply) as server:
        assert words in failure(server.url, tries=1)


@pytest.mark.parametrize(
    "body",
    [
        {"data": []},
        {"data": [{"probs": []}]},
        {"data": [{"probs": [True]}]},
        {"data": [{"probs": ["0.5"]}]},
        {"data": [{}]},
        {"scores": None},
        b'{"data": [{"probs": [1e999]}]}',
        b'{"data": [{"probs": [NaN]}]}',
    ],
)
def test_numbers_that_are_none(body: object) -> None:
    """Neither missing ones nor such as a reward cannot be."""
    with judge_server(lambda _: Answer(body)) as server:
        assert failure(server.url, api="classify", tries=1)


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


class Held:
    """A batch that is held for a judge, and what is logged."""

    def __init__(self, url: str, **spec: Any) -> None:  # noqa: ANN401 - its fields
        self.said: list[str] = []
        self.judge = Judge(JudgeSpec(url, tries=1, model="m", **spec), say=self.said.append)

    async def __aenter__(self) -> Self:
        """Send the batch, and wait until it is held."""
        self.batch = asyncio.ensure_future(self.judge.grade([RIGHT]))
        with anyio.fail_after(10):
            while not self.said:
                assert not self.batch.done()
                await asyncio.sleep(0.02)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all."""
        self.batch.cancel()
        await asyncio.gather(self.batch, return_exceptions=True)
        await self.judge.close()


@pytest.mark.parametrize("away", ["down", "busy", "frozen"])
def test_a_batch_is_held_until_the_judge_is_back(
    monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """Down, without room, or frozen: none of that is a try, and each is logged once."""
    monkeypatch.setattr(judges, "_LIVENESS_LIMIT", 0.2)
    port = free_port()

    async def wait() -> None:
        async with Held(f"http://127.0.0.1:{port}", within=0.2) as held:
            await asyncio.sleep(1.5)
            assert len(held.said) == 1
            assert "requests are held until it answers: the judge at" in held.said[0]
            back.set()
            with anyio.fail_after(10):
                assert await held.batch == [GivenGrade(1.0)]
            assert "answers again after" in held.said[1]

    def serve() -> None:
        if away == "down":
            back.wait()
        server = FakeServer(answer, "127.0.0.1", port)
        with server.running():
            over.wait()

    def answer(asked: Asked) -> Answer:
        if back.is_set():
            return judging(right_if_equal)(asked)
        return Answer(b"", 503) if away == "busy" else Answer(b"", after=1.0)

    back = threading.Event()
    over = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        anyio.run(wait)
    finally:
        back.set()
        over.set()
        thread.join()


def test_a_long_outage_of_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause stays within its limit, however many requests were held through it."""
    items: list[ScoredItem] = [(f"It is {n}", "", "1") for n in range(64)]

    async def run() -> None:
        judge = Judge(JudgeSpec("http://127.0.0.1:1", model="m", parallel=64))
        requests = 0

        async def refuse(*_: object) -> None:
            nonlocal requests
            requests += 1
            if requests == 2_000:
                judge.use("")
            await asyncio.sleep(0)
            raise judges._AwayError("down", 0.0, 0.0)  # noqa: SLF001 - as a refused connection

        monkeypatch.setattr(judge, "_request", refuse)
        with pytest.raises(NoGradeError, match="given up"), anyio.fail_after(30):
            await judge.grade(items)
        await judge.close()

    anyio.run(run)


@pytest.mark.parametrize("status", [429, 503])
def test_a_burst_without_room_is_one_failure(status: int) -> None:
    """Thirty-two requests that are refused together hold the judge off once, for a second."""
    turns = by_turns(*[Answer(b"", status)] * 32, chat("Grade: 1"))
    items: list[ScoredItem] = [(f"It is {n}", "", "1") for n in range(32)]
    lock = threading.Lock()

    def answer(asked: Asked) -> Answer:
        with lock:
            return turns(asked)

    with judge_server(answer) as server:
        began = time.monotonic()
        verdicts, _ = graded(server.url, *items, model="m")
        assert time.monotonic() - began < 10
    assert len(verdicts) == 32


@pytest.mark.parametrize("status", [408, 501, 504, 529])
def test_a_text_that_always_fails_holds_no_other(status: int) -> None:
    """The judge grades the others, and its batch fails at once or after its tries."""

    def poisoned(asked: Asked) -> Answer:
        is_poison = "poison" in asked.body["messages"][0]["content"]
        return Answer(b"", status) if is_poison else right_if_equal(asked)

    async def run(url: str) -> None:
        judge = Judge(JudgeSpec(url, tries=2))
        with anyio.fail_after(10):
            with pytest.raises(NoGradeError, match=f"it answered {status}"):
                await judge.grade([("poison", None, None)])
            assert judge.why_away == ""
            assert await judge.grade([RIGHT]) == [GivenGrade(1.0)]
        await judge.close()

    with judge_server(poisoned) as server:
        anyio.run(run, server.url)


@pytest.mark.parametrize("seconds", ["0", "86400", "9" * 400, "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_a_pause_that_the_judge_asks_for_has_limits(seconds: str) -> None:
    """It is half a second to twenty; another address is asked at once."""

    async def run() -> None:
        refusal = Answer(b"", 503, {"Retry-After": seconds})
        with judge_server(lambda _: refusal) as busy, judge_server() as other:
            async with Held(busy.url) as held:
                (server,) = held.judge._servers  # noqa: SLF001 - no log shows it
                assert 0.0 < server.away_until - time.monotonic() <= 20.0
                held.judge.use(other.url)
                with anyio.fail_after(5):
                    assert await held.batch == [GivenGrade(1.0)]

    anyio.run(run)


def test_a_judge_that_hangs_slows_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets one request at a time until it replies; then it grades again."""
    monkeypatch.setattr(judges, "_LIVENESS_LIMIT", 0.2)
    hangs = threading.Event()
    hangs.set()
    items: list[ScoredItem] = [(f"It is {n}", "", "1") for n in range(200)]

    def hanging(asked: Asked) -> Answer:
        return Answer(b"", after=1.0) if hangs.is_set() else judging(right_if_equal)(asked)

    async def run(urls: str) -> None:
        judge = Judge(JudgeSpec(urls, within=0.5, parallel=8, model="m"))
        with anyio.fail_after(20):
            await judge.grade(items)
            asked = len(posted(bad))
            assert asked <= 8 + 4
            hangs.clear()
            await judge.grade([(f"It is not {n}", "", "1") for n in range(100)])
        assert len(posted(bad)) >= asked + 20
        await judge.close()

    def brief(asked: Asked) -> Answer:
        return right_if_equal(asked)._replace(after=0.02)

    with judge_server(brief) as good, fake_server(hanging) as bad:
        anyio.run(run, f"{bad.url},{good.url}")


def test_of_several_judges_those_that_are_there_grade() -> None:
    """The one with the fewest requests does; one that is down costs no try, and holds no batch."""
    items: list[ScoredItem] = [(f"It is {n}", "", str(n % 2)) for n in range(12)]
    down = f"http://127.0.0.1:{free_port()}"
    with judge_server() as one, judge_server() as other:
        urls = f"{down},{one.url},{other.url}"
        verdicts, judge = graded(urls, *items, tries=1, parallel=2)
        assert len(verdicts) == 12
        assert judge.why_away == ""
        assert min(len(posted(one)), len(posted(other))) >= 4
        assert len(posted(one)) + len(posted(other)) == 12


def test_judges_that_are_given_up_hold_nothing() -> None:
    """Nor does one whose client has left; another address is asked from then on."""

    async def run(url: str) -> None:
        async with Held(f"http://127.0.0.1:{free_port()}") as held:
            held.judge.use("")
            with pytest.raises(NoGradeError, match="given up"), anyio.fail_after(10):
                await held.batch
            held.judge.use(url)
            with anyio.fail_after(10):
                assert await held.judge.grade([RIGHT]) == [GivenGrade(1.0)]

        port = free_port()
        async with Held(f"http://127.0.0.1:{port}") as held:
            held.batch.cancel()
            await asyncio.sleep(1.5)  # longer than until it is asked again
            server = FakeServer(judging(right_if_equal), "127.0.0.1", port)
            with server.running():
                await asyncio.sleep(1.5)
            assert not server.asked

    with judge_server() as server:
        anyio.run(run, server.url)


def test_a_former_grade_is_given_again_while_the_judge_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a batch that is sent again gets its rewards."""
    monkeypatch.setattr(judges, "_FRESH", 0.0)
    monkeypatch.setattr(judges, "_RENEWAL_LIMIT", 0.2)

    async def run() -> None:
        with judge_server() as server:
            judge = Judge(JudgeSpec(server.url))
            assert await judge.grade([RIGHT]) == [GivenGrade(1.0)]
            assert await judge.grade([RIGHT]) == [GivenGrade(1.0)]
            assert len(posted(server)) == 2
        with anyio.fail_after(10):
            assert await judge.grade([RIGHT]) == [GivenGrade(1.0)]
        await judge.close()

    anyio.run(run)


def test_a_former_grade_is_for_probes_where_the_judge_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow judge gives a batch a new grade; a probe gets the former one, also for a failure."""
    monkeypatch.setattr(judges, "_FRESH", 0.0)
    monkeypatch.setattr(judges, "_RENEWAL_LIMIT", 0.1)

    async def run() -> None:
        with judge_server(lambda _: chat("Grade: 0")) as server:
            judge = Judge(JudgeSpec(server.url, tries=1))
            assert await judge.grade([RIGHT]) == [GivenGrade(0.0)]
            server.answer = judging(lambda _: chat("Grade: 1")._replace(after=0.5))
            assert await judge.grade([RIGHT], is_probe=True) == [GivenGrade(0.0)]
            assert await judge.grade([RIGHT]) == [GivenGrade(1.0)]
            server.answer = judging(lambda _: Answer(b"", 500))
            assert await judge.grade([RIGHT], is_probe=True) == [GivenGrade(1.0)]
            with pytest.raises(NoGradeError, match="it answered 500"):
                await judge.grade([RIGHT])
            await judge.close()

    anyio.run(run)


def test_each_judge_is_asked_for_its_own_model() -> None:
    """They may have different ones."""

    def listing(name: str) -> Callable[[Asked], Answer]:
        models = Answer({"data": [{"id": name}]})
        return lambda asked: models if asked.method == "GET" else right_if_equal(asked)

    items: list[ScoredItem] = [(f"It is {n}", "", "1") for n in range(8)]
    with fake_server(listing("a")) as one, fake_server(listing("b")) as other:
        graded(f"{one.url},{other.url}", *items, parallel=1)
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
    items: list[ScoredItem] = [(f"It is {n}", "", str(n % 2)) for n in range(12)]

    def slow(asked: Asked) -> Answer:
        return right_if_equal(asked)._replace(after=0.05)

    with judge_server(slow) as server:
        verdicts, _ = graded(server.url, *items, parallel=3)
    assert server.most_at_once == 3
    expected = [float(str(n % 2) in f"It is {n}") for n in range(12)]
    assert [verdict.reward for verdict in verdicts] == expected


def test_one_answer_without_a_grade_fails_the_batch() -> None:
    """Its others are remembered: the next try asks only for what is left."""

    def odd(asked: Asked) -> Answer:
        is_odd = "It is 3" in asked.body["messages"][0]["content"]
        return chat("?") if is_odd else right_if_equal(asked)

    async def twice(url: str) -> None:
        judge = Judge(JudgeSpec(url, tries=1))
        with pytest.raises(NoGradeError):
            await judge.grade([RIGHT, WRONG])
        assert await judge.grade([RIGHT]) == [GivenGrade(1.0)]
        await judge.close()

    with judge_server(odd) as server:
        anyio.run(twice, server.url)
        assert len(posted(server)) == 2


def test_a_client_that_leaves_finds_the_grade_later() -> None:
    """A slow judge is asked once, and no client has to wait for as long as it takes."""

    async def impatient(url: str) -> list[GivenGrade]:
        judge = Judge(JudgeSpec(url))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(judge.grade([RIGHT]), 0.1)
        verdicts = await judge.grade([RIGHT])
        await judge.close()
        return verdicts

    with judge_server(lambda asked: right_if_equal(asked)._replace(after=0.5)) as server:
        assert anyio.run(impatient, server.url) == [GivenGrade(1.0)]
        assert len(posted(server)) == 1


def test_what_the_user_sets_for_answers_without_a_grade() -> None:
    """Counted, and marked in the reply; a judge that fails still fails the batch."""
    with judge_server(lambda _: Answer({"error": "too long"}, 400)) as server:
        verdicts, judge = graded(server.url, RIGHT, ungraded=-1.0, tries=2)
    assert verdicts == [GivenGrade(-1.0, is_graded=False)]
    assert judge.totals.ungraded == 1
    with judge_server(lambda _: Answer(b"", 500)) as server:
        assert "500" in failure(server.url, ungraded=0.0, tries=1)


def test_the_usual_pattern() -> None:
    """The last grade counts, with the marks that models put around it."""
    for text, grade in {
        "Grade: 0.2, no: **Grade:** **0.75**": 0.75,
        "Grade: 1": 1.0,
        "Grade:.5": 0.5,
    }.items():
        with judge_server(lambda _, text=text: chat(text)) as server:  # type: ignore[misc]
            assert graded(server.url, RIGHT)[0] == [GivenGrade(grade)], (text, GRADE)


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
            reward_server(*flags, env={KEY_VARIABLE: SECRET}) as server,
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


@pytest.mark.processes
@pytest.mark.parametrize("spec", ["", "{}", '{"url": "x", "apo": 1}', '{"url": "x", "api": "y"}'])
def test_a_wrong_judge_is_a_wrong_flag(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with 2."""
    with pytest.raises(SystemExit) as end:
        main(["--judge", spec])
    assert end.value.code == 2
    assert "--judge" in capsys.readouterr().err
