"""The stand-in for an engine: its requests, versions in its replies, and its faults."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from agent.bundled.rehearsal import ANSWERS
from agent.bundled.rehearsal_engine import UNTRAINED, Drawn, Engine, EngineLog, main
from agent.bundled.rehearsal_weights import write_weights
from agent.bundled.rehearsal_wires import WireError, ask
from support.rehearsal_engines import EngineProcess, running_engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROMPT = "What is 3+4?"
CERTAIN = {PROMPT: [0.0] * 7 + [50.0] + [0.0] * (ANSWERS - 8)}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An engine for all tests of this file."""
    log = tmp_path_factory.mktemp("engine") / "engine.jsonl"
    with running_engine(log, "--name", "engine.0") as made:
        yield made


# --- verbs ----------------------------------------------------------------------------------------


@pytest.mark.processes
def test_what_a_client_looks_at(engine: EngineProcess) -> None:
    """Probes, sizes, the model and the load are as slime and prime-rl read them."""
    for probe in ("/health", "/health_generate", "/liveness"):
        assert engine.ask(probe, method="GET") == {"status": "ok"}
    sizes = engine.ask("/server_info", method="GET")
    assert (sizes["tp_size"], sizes["pp_size"], sizes["num_gpus"]) == (1, 1, 1)
    assert engine.ask("/v1/models", method="GET")["data"][0]["id"] == "rehearsal"
    load = {"num_running_reqs": 0, "num_waiting_reqs": 0}
    assert engine.ask("/v1/loads?include=core", method="GET") == {"loads": [load]}


@pytest.mark.processes
def test_a_refit_by_sglangs_verb(engine: EngineProcess, tmp_path: Path) -> None:
    """Replies have the version that drew them; a folder that is gone is a 400."""
    write_weights(tmp_path / "weight_v000007", CERTAIN)
    folder = str(tmp_path / "weight_v000007")
    assert engine.ask("/pause_generation") == {"status": "ok"}
    assert engine.ask("/flush_cache", method="GET") == {"success": True}
    refit = engine.ask("/update_weights_from_disk", {"model_path": folder, "weight_version": "7"})
    assert refit == {"success": True, "message": "", "num_paused_requests": 0}
    assert engine.ask("/continue_generation") == {"status": "ok"}
    assert engine.ask("/model_info", method="GET")["weight_version"] == "7"

    reply = engine.ask("/generate", {"text": PROMPT, "sampling_params": {}})
    assert reply["text"] == "Counting up, the answer is \\boxed{7}."
    assert reply["output_ids"] == [7]
    about = reply["meta_info"]
    assert (about["weight_version"], about["engine"], about["start"]) == ("7", "engine.0", 1)
    assert about["finish_reason"] == {"type": "stop"}
    assert len(engine.ask("/generate", {"text": PROMPT, "sampling_params": {"n": 3}})) == 3

    with pytest.raises(WireError, match=r"400 .*No such file"):
        engine.ask("/update_weights_from_disk", {"model_path": f"{folder}x", "weight_version": "8"})
    assert engine.ask("/model_info", method="GET")["weight_version"] == "7"


@pytest.mark.processes
def test_a_refit_by_prime_rls_verb(engine: EngineProcess, tmp_path: Path) -> None:
    """The folder's name has the version; a folder that is gone is a 500, which is tried again."""
    write_weights(tmp_path / "step_12", CERTAIN)
    assert engine.ask("/pause?mode=keep&clear_cache=false") == {"status": "paused"}
    refit = {"weight_dir": str(tmp_path / "step_12")}
    assert engine.ask("/update_weights", refit) == {"status": "ok"}
    assert engine.ask("/resume") == {"status": "ok"}
    messages = [{"role": "user", "content": PROMPT}]
    reply = engine.ask("/v1/chat/completions", {"messages": messages, "n": 2})
    assert (reply["weight_version"], reply["engine"], reply["start"]) == ("12", "engine.0", 1)
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    assert texts == ["Counting up, the answer is \\boxed{7}."] * 2
    with pytest.raises(WireError, match="500 "):
        engine.ask("/update_weights", {"weight_dir": str(tmp_path / "step_13")})


@pytest.mark.processes
@pytest.mark.parametrize(
    ("verb", "body", "words"),
    [
        ("/generate", [0], "body: expected an object"),
        ("/generate", {"text": ["x"]}, "text: expected a string"),
        ("/generate", {"text": "x", "sampling_params": 3}, "sampling_params: "),
        ("/generate", {"text": "x", "sampling_params": {"n": 0}}, "n: expected"),
        ("/v1/chat/completions", {"messages": []}, "messages: expected"),
        ("/update_weights", {}, "weight_dir: expected a path"),
        ("/fault", {"name": "tired"}, "name: expected one of none, "),
        ("/fault", {"name": "refit-slow", "seconds": "x"}, "seconds: expected"),
    ],
)
def test_a_wrong_body_is_named(engine: EngineProcess, verb: str, body: object, words: str) -> None:
    """It is a 400 with the field."""
    with pytest.raises(WireError, match=words) as refused:
        ask(engine.address, verb, body)
    assert refused.value.status == 400


@pytest.mark.processes
def test_faults_by_request(engine: EngineProcess) -> None:
    """Unavailable is a 503 to all but the next fault; with probes-only no generation ends."""
    engine.ask("/fault", {"name": "unavailable"})
    with pytest.raises(WireError, match="503"):
        engine.ask("/health", method="GET")
    engine.ask("/fault", {"name": "probes-only"})
    engine.ask("/health_generate", method="GET")
    with pytest.raises(WireError, match="timed out"):
        ask(engine.address, "/generate", {"text": PROMPT}, 0.2)
    engine.ask("/fault", {"name": "fails"})
    with pytest.raises(WireError, match="500"):
        engine.ask("/generate", {"text": PROMPT})
    engine.ask("/health_generate", method="GET")
    engine.ask("/fault", {"name": "none"})
    engine.ask("/generate", {"text": PROMPT})


@pytest.mark.processes
def test_a_start_is_counted(tmp_path: Path) -> None:
    """An engine that exits and starts again has the next number, and untrained weights."""
    log = tmp_path / "engine.jsonl"
    with running_engine(log) as first:
        port = int(first.address.partition(":")[2])
        with pytest.raises(WireError):
            first.ask("/fault", {"name": "exit"})
        assert first.process.wait(20) == 1
    with log.open("a") as out:
        out.write('{"what": "gener')  # as a kill may leave it
        out.write("\n")
    with running_engine(log, port=port) as second:
        about = second.ask("/generate", {"text": PROMPT})["meta_info"]
    assert (about["weight_version"], about["start"]) == (UNTRAINED, 2)


def test_bad_weights_end_its_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is 1, with the folder."""
    assert main(["--weights-from", str(tmp_path / "none")]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_a_taken_port_is_78() -> None:
    """As of every bundled server."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--port", str(taken.getsockname()[1])]) == 78


# --- what runs while it is paused or refitted -----------------------------------------------------


def made(seconds: float) -> Engine:
    """Return an engine without HTTP and log file."""
    return Engine({}, EngineLog(None, "engine.0"), seconds, 0.0)


async def asked(engine: Engine) -> asyncio.Task[Drawn]:
    """Return a generation that runs up to its first wait."""
    running = asyncio.create_task(engine.generate(PROMPT, 1))
    await asyncio.sleep(0)
    assert engine.running == 1
    return running


@pytest.mark.anyio
async def test_a_paused_engine_aborts_what_runs() -> None:
    """The reply has no answers; a request that comes meanwhile waits until it goes on."""
    engine = made(60.0)
    running = await asked(engine)
    engine.pause(aborts=True)
    assert (await running).is_aborted
    engine = made(0.01)
    engine.pause(aborts=True)
    waiting = asyncio.create_task(engine.generate(PROMPT, 1))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    engine.resume()
    assert len((await waiting).answers) == 1


@pytest.mark.anyio
async def test_a_kept_request_is_drawn_with_the_new_weights(tmp_path: Path) -> None:
    """prime-rl pauses with mode keep: what ran goes on after the refit, with its version."""
    write_weights(tmp_path / "step_3", CERTAIN)
    engine = made(0.01)
    running = await asked(engine)
    engine.pause(aborts=False)
    await engine.refit(str(tmp_path / "step_3"), "3")
    assert engine.running == 1
    engine.resume()
    drawn = await running
    assert drawn.version == "3"
    assert [answer for answer, _ in drawn.answers] == [7]


@pytest.mark.anyio
async def test_a_lost_refit_changes_nothing(tmp_path: Path) -> None:
    """The engine confirms it, and stays at its old version."""
    write_weights(tmp_path / "w", CERTAIN)
    engine = made(0.0)
    engine.fault = "refit-lost"
    await engine.refit(str(tmp_path / "w"), "3")
    assert (engine.version, engine.policy) == (UNTRAINED, {})
    engine.fault = "refit-hangs"
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(engine.refit(str(tmp_path / "w"), "3"), 0.05)
