"""The reward server as a real process: the protocol, and no traceback in any reply."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import anyio
import pytest

from agent.base import times
from agent.bundled.judge import JudgeSpec
from agent.bundled.rehearsal import RewardClient, RewardError
from agent.bundled.reward_server import NODES, BadRequestError, RewardServer, main, read_request
from agent.processes.probing import reward_answers
from support.conditions import is_so
from support.free_ports import free_port
from support.reward_process import (
    NOTICE,
    SECONDS,
    Reply,
    RewardProcess,
    ask,
    reward_server,
)
from support.worlds import SECRET

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from agent.bundled import maths

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server() -> Iterator[RewardProcess]:
    """One server for the tests that only ask."""
    with reward_server("--host", "127.0.0.1,127.0.0.2") as process:
        yield process


def batch(size: int) -> dict[str, object]:
    """Return a batch of additions with right answers."""
    prompts = [f"What is {number}+1?" for number in range(size)]
    return {
        "query": [f"{p} It is \\boxed{{{n + 1}}}." for n, p in enumerate(prompts)],
        "prompts": prompts,
        "labels": [str(number + 1) for number in range(size)],
    }


def test_it_scores_each_item(server: RewardProcess) -> None:
    """Right, wrong, missing and unlabeled items get their own numbers, in order."""
    query = [r"\boxed{1/2}", "it is 8", "no idea", "7"]
    reply = ask(server.url, {"query": query, "labels": ["0.5", 7, "#### 7", None]})
    assert reply.status == 200
    assert reply.body == {
        "rewards": [1.0, 0.0, 0.0, 0.0],
        "scores": [1.0, 0.0, 0.0, 0.0],
        "extra_logs": {
            "correct": [1.0, 0.0, 0.0, 0.0],
            "answered": [1.0, 1.0, 0.0, 1.0],
            "unlabelled": [0.0, 0.0, 0.0, 1.0],
        },
    }


def test_it_scores_without_labels(server: RewardProcess) -> None:
    """The rewards are 0, and the logs mark it; a batch may be empty."""
    reply = ask(server.url, {"query": ["7"], "prompts": None}).body
    assert reply["rewards"] == [0.0]
    assert reply["extra_logs"]["unlabelled"] == [1.0]
    assert ask(server.url, {"query": [], "labels": []}).body["rewards"] == []


def test_it_listens_on_every_host(server: RewardProcess) -> None:
    """The first line has a URL for each host, and each answers."""
    assert server.line.count("http://") == 2
    for url in server.urls:
        assert ask(url, batch(3)).body["rewards"] == [1.0] * 3


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"nope", "JSON is malformed"),
        (b"\xff\xfe\xfa", "JSON is malformed"),
        (b"[" * 100_000, "body: "),
        (b"[]", "body: Expected `object`"),
        (b"{}", "query: missing"),
        (b'{"query": null}', "query: missing"),
        (b'{"query": "7"}', "got `str` - at `$.query`"),
        (b'{"query": ["a", 1]}', "Expected `str`, got `int` - at `$.query[1]`"),
        (b'{"query": ["a"], "prompts": [null]}', "got `null` - at `$.prompts[0]`"),
        (b'{"query": ["a"], "prompts": []}', "prompts: has 0 items where query has 1"),
        (b'{"query": ["a"], "labels": ["1", "2"]}', "labels: has 2 items where query has 1"),
        (b'{"query": ["a"], "labels": [true]}', "at `$.labels[0]`"),
        (b'{"query": ["a"], "labels": [["1"]]}', "got `array`"),
        (b'{"query": ["a"], "labels": [NaN]}', "JSON is malformed"),
    ],
)
def test_malformed_input_names_the_field(server: RewardProcess, body: bytes, said: str) -> None:
    """A malformed body is a 400 with the field's name."""
    reply = ask(server.url, body)
    assert reply.status == 400
    assert said in reply.body["error"]


def test_other_methods_and_paths(server: RewardProcess) -> None:
    """A wrong method or path is an error in JSON."""
    assert ask(server.url).status == 405
    assert "POST" in ask(server.url).body["error"]
    missing = ask(server.at("/score"), {"query": []})
    assert missing.status == 404
    assert "/get_reward" in missing.body["error"]


def test_a_large_batch_blocks_no_request(server: RewardProcess) -> None:
    """While a huge batch is scored, small ones are answered."""
    huge: list[int] = []
    thread = threading.Thread(
        target=lambda: huge.append(sum(ask(server.url, batch(100_000)).body["rewards"]))
    )
    thread.start()
    served = 0
    while thread.is_alive():
        assert ask(server.url, batch(2)).body["rewards"] == [1.0, 1.0]
        served += 1
    thread.join(SECONDS)
    assert huge == [100_000]
    assert served > 3


def test_path_and_body_limit() -> None:
    """--path sets the path; a body of more than 64 MiB is a 413 in JSON."""
    with reward_server("--path", "/rm/score") as server:
        assert server.url.endswith("/rm/score")
        assert ask(server.url, batch(1)).status == 200
        reply = ask(server.url, b" " * (65 << 20))
        assert reply.status == 413
        assert "67108864" in reply.body["error"]


def test_a_token_guards_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without it are refused before they are read; probe and client send it."""
    with reward_server(env={"AGENT_REWARD_TOKEN": SECRET}) as server:
        assert ask(server.url, b"no json").status == 401
        assert "AGENT_REWARD_TOKEN" in str(ask(server.url, b"{}").body)
        for token, wanted in ((SECRET, ""), ("another", "401"), (None, "401")):
            evidence = anyio.run(reward_answers, server.url, SECONDS, token)
            assert wanted in evidence
            assert bool(wanted) == bool(evidence)
        monkeypatch.setenv("AGENT_REWARD_TOKEN", SECRET)
        assert RewardClient(server.url, SECONDS).rewards(batch(2)) == [1.0, 1.0]
        monkeypatch.delenv("AGENT_REWARD_TOKEN")
        with pytest.raises(RewardError, match="401"):
            RewardClient(server.url, SECONDS).rewards(batch(2))


def test_bad_requests_are_not_logged() -> None:
    """Malformed JSON, invalid HTTP and early disconnects write nothing to stderr."""
    with reward_server() as server:
        ask(server.url, b"nope")
        for text in (b"garbage\r\n\r\n", b"POST / HTTP/9.9\r\nA\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), SECONDS) as peer:
                peer.sendall(text)
                assert b"400" in peer.recv(1000)
        with socket.create_connection(("127.0.0.1", server.port), SECONDS) as peer:
            peer.sendall(b"POST /get_reward HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab")
        assert server.stop() == (0, NOTICE)


def test_it_ends_promptly_on_a_signal() -> None:
    """SIGTERM ends it with 0 and without output, even with a client connected."""
    with reward_server() as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
        with contextlib.closing(client):
            client.request("GET", "/get_reward")
            client.getresponse().read()
            assert server.stop() == (0, NOTICE)


@pytest.mark.parametrize(
    ("host", "remedy"),
    [("192.0.2.77", "--host"), ("no.such.host.invalid", "--host"), ("127.0.0.1", "--port")],
)
def test_an_address_that_it_cannot_have_is_78(
    host: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another machine's, nobody's, or one with a taken port: one line, with the remedy."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--host", host, "--port", str(port)]) == 78
    (line,) = capsys.readouterr().err.splitlines()
    assert f"cannot listen on {host}, port {port} (" in line
    assert remedy in line


@pytest.mark.parametrize(
    "flag",
    [
        "--port=x",
        "--port=70000",
        "--path=nope",
        "--judge=",
        "--judge={}",
        '--judge={"url": "x", "apo": 1}',
        '--judge={"url": "x", "api": "y"}',
    ],
)
def test_wrong_flags_are_usage_errors(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong flag is 2, and names the flag."""
    with pytest.raises(SystemExit) as ended:
        main([flag])
    assert ended.value.code == 2
    assert flag.partition("=")[0] in capsys.readouterr().err


def test_a_broken_math_verify_fails_no_request(tmp_path: Path) -> None:
    """An installation that raises is logged once; numbers and texts are still compared."""
    (tmp_path / "math_verify.py").write_text("raise RuntimeError('no antlr')")
    with reward_server(env={"PYTHONPATH": str(tmp_path)}) as server:
        body: dict[str, object] = {"query": [r"\boxed{y+x}", "7"] * 2, "labels": ["x+y", "7"] * 2}
        assert ask(server.url, body).body["rewards"] == [0.0, 1.0] * 2
        assert ask(server.url, body).body["rewards"] == [0.0, 1.0] * 2
        code, stderr = server.stop()
    assert code == 0
    assert len(stderr.splitlines()) == 1
    assert "no antlr" in stderr


def test_math_verify_compares_expressions(tmp_path: Path) -> None:
    """If installed, it decides pairs that are neither numbers nor words; its output is ignored."""
    (tmp_path / "math_verify.py").write_text(
        "print('antlr versions disagree')\n"
        "def parse(text): return ''.join(sorted(text))\n"
        "def verify(gold, answer): print('comparing'); return gold == answer\n"
    )
    with reward_server(env={"PYTHONPATH": str(tmp_path)}) as server:
        query = [r"\boxed{y+x}", r"\boxed{y+z}", r"\boxed{21}"]
        reply = ask(server.url, {"query": query, "labels": ["x+y", "x+y", "12"]})
        assert reply.body["rewards"] == [1.0, 0.0, 0.0]
        assert server.stop() == (0, "")


FAKE = """
import os, signal, time
from pathlib import Path

FOLDER = Path(__file__).parent
limit_cpu = signal.setitimer
signal.setitimer = lambda which, seconds: limit_cpu(which, seconds / 10)  # on a busy machine, too
with (FOLDER / "pids").open("a") as file:
    print(os.getpid(), file=file)

def parse(text):
    with (FOLDER / "parsed").open("a") as file:
        print(text, file=file)
    if "burn" in text:
        with (FOLDER / "burned").open("a") as file:
            file.write(".")
        try:
            while True:
                pass
        except BaseException:  # it ignores whatever is raised
            parse(text)
    if "bad" in text:
        raise ValueError("malformed")
    if "block" in text and not (FOLDER / "unblocked").exists():
        time.sleep(600)
    if "slow" in text and not (FOLDER / "fast").exists():
        signal.alarm(1)  # as its own limit does
        for _ in range(15):
            time.sleep(0.1)
    if "die" in text and not (FOLDER / "alive").exists():
        os._exit(3)
    if "once" in text and not (FOLDER / "killed").exists():
        (FOLDER / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "".join(sorted(text))

def verify(gold, answer):
    return gold == answer
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """Return a folder with a math-verify that uses CPU, blocks or exits on certain answers."""
    (tmp_path / "math_verify.py").write_text(FAKE)
    return tmp_path


def pairs(*answers: str, labels: list[str] | None = None) -> dict[str, object]:
    """Return a batch of boxed answers; each label is its answer the other way round."""
    turned = [answer[::-1] for answer in answers]
    return {"query": [rf"\boxed{{{answer}}}" for answer in answers], "labels": labels or turned}


@pytest.mark.serial
def test_a_pair_over_its_cpu_time_scores_0(fake: Path) -> None:
    """The log names it, the others keep their scores, and the verdict is remembered."""
    with reward_server(env={"PYTHONPATH": str(fake)}) as server:
        body = pairs("y+x", "burn+x", "bad+x", "z+x")
        burned: list[str] = []
        for _ in range(2):
            reply = ask(server.url, body)
            burned.append((fake / "burned").read_text())
            assert reply.status == 200
            assert reply.body["rewards"] == reply.body["scores"] == [1.0, 0.0, 0.0, 1.0]
        assert burned[0] == burned[1]  # the second time it is not verified again
        code, stderr = server.stop()
    assert code == 0
    assert "3 s of CPU on a pair, which scores 0: ('burn+x'" in stderr
    assert len(stderr.splitlines()) == 1


@pytest.mark.serial
def test_a_slow_batch_is_503_and_the_retry_succeeds(fake: Path) -> None:
    """Wall time changes no reward: a batch over the limit is retried and then scored."""
    with reward_server("--limit", "2.9", env={"PYTHONPATH": str(fake)}) as server:
        body = pairs(*(f"slow+{n}x" for n in range(4)))
        late = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
        late.request("POST", "/get_reward", json.dumps(body))
        reply = late.getresponse()
        assert (reply.status, reply.headers["Retry-After"]) == (503, "2")
        assert "within 2.9 s" in json.loads(reply.read())["error"]
        late.close()
        rewards = [ask(server.url, body) for _ in range(3)][-1]
        assert rewards.body["rewards"] == [1.0] * 4
        assert "no rewards, the client has to retry" in server.stop()[1]


@pytest.mark.serial
@pytest.mark.parametrize(
    ("word", "cure"),
    [("die", "alive"), pytest.param("block", "unblocked", marks=pytest.mark.slow)],
)
def test_a_lost_process_is_503(fake: Path, word: str, cure: str) -> None:
    """A process that exits twice, or blocks, yields no reward; later requests succeed."""
    with reward_server(env={"PYTHONPATH": str(fake)}) as server:
        body = pairs("y+x", f"{word}+x")
        reply = ask(server.url, body)
        assert reply.status == 503
        assert "math-verify" in reply.body["error"]
        assert ask(server.url, pairs("y+x")).body["rewards"] == [1.0]
        (fake / cure).touch()
        assert ask(server.url, body).body["rewards"] == [1.0, 1.0]
        assert server.stop()[0] == 0


@pytest.mark.serial
def test_a_killed_process_is_restarted(fake: Path) -> None:
    """A kill during a pair, or between two requests, does not reach the client."""
    with reward_server(env={"PYTHONPATH": str(fake)}) as server:
        assert ask(server.url, pairs("once+x", "y+x")).body["rewards"] == [1.0, 1.0]
        for pid in (fake / "pids").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        assert ask(server.url, pairs("a+x", "b+x", "c+x")).body["rewards"] == [1.0] * 3
        assert server.stop() == (0, "")


@pytest.mark.serial
def test_a_client_that_leaves_costs_no_process(fake: Path) -> None:
    """Its step goes on, since a new process takes seconds, and the retry finds its verdict."""
    (fake / "parsed").touch()
    with reward_server(env={"PYTHONPATH": str(fake)}) as server:
        body = pairs("slow+x", *(f"slow+{n}x" for n in range(20)))
        leaving = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
        leaving.request("POST", "/get_reward", json.dumps(body))
        while "slow" not in (fake / "parsed").read_text():
            assert server.process.poll() is None
        leaving.close()
        assert ask(server.url, pairs("slow+x")).body["rewards"] == [1.0]
        assert len((fake / "pids").read_text().split()) <= 2
        assert (fake / "parsed").read_text().count("slow") <= 8
        assert server.stop() == (0, "")


@pytest.mark.serial
def test_a_stop_does_not_wait_for_a_blocked_process(fake: Path) -> None:
    """SIGTERM ends it promptly, with a 503 for open requests, and leaves no process."""
    replies: list[Reply] = []
    with reward_server(env={"PYTHONPATH": str(fake)}) as server:
        body = pairs("block+x")
        waiting = threading.Thread(target=lambda: replies.append(ask(server.url, body)))
        waiting.start()
        assert ask(server.url, pairs("y+x")).body["rewards"] == [1.0]
        assert server.stop()[0] == 0
        waiting.join(SECONDS)
    assert [reply.status for reply in replies] == [503]
    pids = (fake / "pids").read_text().split()
    assert [pid for pid in pids if Path("/proc", pid).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", [b'"",', b"1,", b"[],"])
def test_very_many_items_are_refused_before_they_are_read(part: bytes) -> None:
    """A body of them takes 25 times its size in memory once it is read."""
    body = b'{"query": ["1"], "labels": [' + part * 2_000_000 + b"1]}"
    tracemalloc.start()
    with pytest.raises(BadRequestError, match="at most 262144 items"):
        read_request(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(body)


def test_the_largest_batch_is_read() -> None:
    """It has the texts, prompts and labels of all items."""
    most = 262_144
    body = {name: ["x"] * most for name in ("query", "prompts", "labels")}
    items, is_one = read_request(json.dumps(body).encode())
    assert (len(items), is_one) == (most, False)


@contextlib.asynccontextmanager
async def serving(server: RewardServer, port: socket.socket | None = None) -> AsyncIterator[str]:
    """Serve in this process; yield the URL."""
    taken = port or socket.create_server(("127.0.0.1", 0))
    async with server.program.served([taken]):
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/get_reward"


def used(server: RewardServer) -> int:
    """Return the memory that is counted for all batches."""
    return server._bodies.used  # noqa: SLF001 - no reply shows it


class Undecided(RewardServer):
    """A reward server in this process, whose batches are never decided."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        monkeypatch.setattr("agent.serving.bodies.BODY_QUEUE", 1.0)
        monkeypatch.setattr("agent.bundled.reward_server._MOST_MEMORY", most)
        monkeypatch.setattr("agent.bundled.reward_server.decide", self._decide)
        super().__init__("/get_reward", 20.0)
        self.deciding = 0

    async def _decide(self, *_: object) -> list[maths.Grade]:
        self.deciding += 1
        try:
            return await asyncio.Future()
        finally:
            self.deciding -= 1


ITEMS = 5_000
SMALL = json.dumps({"query": [""] * ITEMS}).encode()


async def ask_much(
    session: aiohttp.ClientSession, url: str, requests: int
) -> list[asyncio.Task[aiohttp.ClientResponse]]:
    """Send batches until one is refused; return all of them."""
    asked = [asyncio.create_task(session.post(url, data=SMALL)) for _ in range(requests)]
    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    assert {(await one).status for one in done} == {503}
    return asked


async def leave(asked: Sequence[asyncio.Task[aiohttp.ClientResponse]]) -> None:
    """Let the clients of these requests leave."""
    for one in asked:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.anyio
async def test_many_small_items_count_by_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """In all requests together: what does not fit waits, and is then a 503."""
    small = Undecided(monkeypatch, 4 << 20)
    async with serving(small) as url, aiohttp.ClientSession() as session:
        asked = await ask_much(session, url, 12)
        assert 1 <= small.deciding <= 8  # in 4 MiB, each at least 100 bytes an item
        assert used(small) >= small.deciding * ITEMS * 100
        await leave(asked)
        await is_so(lambda: not small.deciding)
        await is_so(lambda: not used(small))


@pytest.mark.anyio
async def test_the_nodes_of_the_run_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's probe names them: strangers fill their own part of the memory, and no other."""
    monkeypatch.setattr("agent.bundled.reward_server.is_loopback", "127.0.0.1".__eq__)
    small = Undecided(monkeypatch, 1 << 20)
    far = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with (
        serving(small) as url,
        aiohttp.ClientSession() as own,
        aiohttp.ClientSession(connector=far) as strangers,
    ):
        # A stranger names itself; then the agent names the nodes.
        for session, nodes in ((strangers, "127.0.0.2"), (own, "10.0.0.2,10.0.0.3")):
            async with session.post(url, data=b"{}", headers={NODES: nodes}) as reply:
                assert reply.status == 400

        asked = await ask_much(strangers, url, 8)
        held = small.deciding
        asked.append(asyncio.create_task(own.post(url, data=SMALL)))
        await is_so(lambda: small.deciding == held + 1)
        await leave(asked)
        await is_so(lambda: not small.deciding)


@pytest.mark.anyio
async def test_held_batches_count_by_their_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text with many commas takes far less than it might: all are held for the judge."""
    monkeypatch.setattr("agent.serving.bodies.BODY_QUEUE", 1.0)
    monkeypatch.setattr("agent.bundled.reward_server._MOST_MEMORY", 4 << 20)
    down = JudgeSpec(f"http://127.0.0.1:{free_port()}", model="m")
    server = RewardServer("/get_reward", 20.0, judge=down)
    pending = server._judge._pending  # type: ignore[union-attr] # noqa: SLF001 - no reply shows it
    text = "1, " * 10_000

    async with serving(server) as url, aiohttp.ClientSession() as session:
        asked = [
            asyncio.create_task(session.post(url, json={"query": [f"{text}{number}"]}))
            for number in range(12)
        ]
        await is_so(lambda: len(pending) == 12)
        assert not any(task.done() for task in asked)
        assert 12 * len(text) <= used(server) < 24 * len(text)
        await leave(asked)


async def send_unread(url: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request, and accept nothing of the reply but what a small buffer takes."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)  # noqa: FBT003 - the socket module's own signature
    address = url.split("/")[2].split(":")
    await asyncio.get_running_loop().sock_connect(client, (address[0], int(address[1])))
    reader, writer = await asyncio.open_connection(sock=client, limit=1024)
    head = f"POST /get_reward HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_reply_that_is_not_read_counts_and_has_a_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the client has it: replies that nobody reads would fill the memory uncounted."""
    monkeypatch.setattr(times, "READER_STALLED", 2.0)
    server = RewardServer("/get_reward", 60.0)
    body = json.dumps({"query": ["7"] * 200_000, "labels": ["7"] * 200_000}).encode()
    least = 200_000 * 5 * len("1.0,")
    port = socket.create_server(("127.0.0.1", 0))
    port.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    async with serving(server, port) as url:
        reader, writer = await send_unread(url, body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert least <= used(server) < 2 * least
        await is_so(lambda: not used(server))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(least)
        writer.close()


@pytest.mark.serial
def test_requests_take_turns(fake: Path) -> None:
    """A small batch is scored before the rest of a large one, however that ends under load."""
    pairs_of_large = [f"slow+{n}x" for n in range(100)]
    with reward_server(env={"PYTHONPATH": str(fake)}) as server:
        large = threading.Thread(target=ask, args=(server.url, pairs(*pairs_of_large)))
        large.start()
        assert ask(server.url, pairs("y+x")).body["rewards"] == [1.0]
        begun = {text for text in pairs_of_large if text in (fake / "parsed").read_text()}
        assert len(begun) < len(pairs_of_large)
        (fake / "fast").touch()
        large.join(SECONDS)
        assert not large.is_alive()
