"""The asynchronous rehearsal learns, syncs its engines, and counts stale samples."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from agent.bundled.rehearsal_async import VersionedSample, main
from agent.bundled.rehearsal_weights import read_weights, write_weights
from agent.bundled.rehearsal_wires import EngineReply, PrimeWires, SlimeWires, WireError
from support.fake_server import Answer, Asked, FakeServer, by_turns, fake_server
from support.rehearsal_engines import EngineProcess, running_engine, scoring

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POLICY = {"What is 3+4?": [0.0] * 10}
SLIME_SYNC = [
    "POST /pause_generation",
    "GET /flush_cache",
    "POST /update_weights_from_disk",
    "POST /continue_generation",
]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineProcess]]:
    """Two engines for all tests of this file."""
    folder = tmp_path_factory.mktemp("engines")
    with ExitStack() as stack:
        yield [
            stack.enter_context(running_engine(folder / f"{n}.jsonl", "--name", f"engine.{n}"))
            for n in range(2)
        ]


@pytest.fixture(scope="module")
def rewards() -> Iterator[FakeServer]:
    """A server that scores sums."""
    with scoring() as server:
        yield server


class Trained(NamedTuple):
    """A finished run of the trainer: its code, its lines and its samples."""

    code: int
    steps: list[str]
    error: str
    samples: list[dict[str, Any]]

    def mean(self, step: int) -> float:
        """Return the mean reward of the line at a place."""
        found = re.search(r"mean reward (\S+)", self.steps[step])
        assert found is not None
        return float(found[1])


class Trainer:
    """Runs the trainer in this process, without pauses."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys

    def run(
        self, engines: list[EngineProcess], rewards: FakeServer, steps: int, *flags: str
    ) -> Trained:
        """Train on these engines; return what the run has left."""
        samples = self._folder / "s.jsonl"
        samples.write_text("")
        addresses = [engine.address for engine in engines]
        of_run = ["--engines", *addresses, "--reward-url", rewards.url, "--steps", str(steps)]
        places = ["--weights-dir", str(self._folder), "--samples", str(samples)]
        code = main([*of_run, *places, *flags])
        shown = self._capsys.readouterr()
        lines = [json.loads(line) for line in samples.read_text().splitlines()]
        return Trained(code, shown.out.splitlines(), shown.err, lines)


@pytest.fixture
def trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Trainer:
    """Return a trainer for one test."""
    monkeypatch.setattr("agent.bundled.rehearsal_async.PAUSE", 0.01)
    return Trainer(tmp_path, capsys)


# --- learning -------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("dialect", ["sglang", "prime-rl"])
def test_the_reward_rises(
    engines: list[EngineProcess], rewards: FakeServer, trainer: Trainer, dialect: str
) -> None:
    """Engines draw with the weights that were synced, and no sample is stale."""
    done = trainer.run(engines, rewards, 12, "--dialect", dialect)
    assert done.code == 0, done.error
    assert len(done.steps) == 12
    assert done.steps[-1].startswith("step 12/12 mean reward 0.")
    assert done.steps[-1].endswith(" stale samples 0")
    assert done.mean(0) < 0.3
    assert done.mean(-1) > 0.5
    assert {line["engine"] for line in done.samples} == {"engine.0", "engine.1"}
    assert all(0 <= line["synced"] - line["version"] + 1 <= 1 for line in done.samples)
    assert "reward" not in done.error


@pytest.mark.processes
def test_a_resumed_run_goes_on(
    engines: list[EngineProcess], rewards: FakeServer, trainer: Trainer, tmp_path: Path
) -> None:
    """It takes the newest checkpoint, and counts its versions from 1 again."""
    saved = tmp_path / "saved"
    trainer.run(engines, rewards, 3, "--checkpoints", str(saved))
    assert sorted(path.name for path in saved.iterdir()) == ["checkpoint-2", "checkpoint-3"]
    again = trainer.run(engines, rewards, 4, "--checkpoints", str(saved))
    assert [line.partition(" mean")[0] for line in again.steps] == ["step 4/4"]
    assert {line["version"] for line in again.samples} == {1}
    assert trainer.run(engines, rewards, 4, "--checkpoints", str(saved)).steps == []


@pytest.mark.processes
def test_stale_samples_are_counted(
    engines: list[EngineProcess], rewards: FakeServer, trainer: Trainer, tmp_path: Path
) -> None:
    """An engine that confirms a refit and keeps its weights is found by its replies."""
    with running_engine(tmp_path / "e.jsonl", "--name", "bad", "--fault", "refit-lost") as bad:
        done = trainer.run([engines[0], bad], rewards, 3)
    assert done.code == 0
    stale = [line for line in done.samples if line["stale"]]
    assert {line["engine"] for line in stale} == {"bad"}
    assert {line["version"] for line in stale} == {-1}
    assert done.steps[-1].endswith(f" stale samples {len(stale)}")


@pytest.mark.parametrize(
    ("version", "synced", "written", "is_stale"),
    [(3, 3, 3, False), (3, 3, 4, False), (4, 3, 4, False), (2, 3, 4, True), (9, 3, 4, True)],
)
def test_which_sample_is_stale(version: int, synced: int, written: int, *, is_stale: bool) -> None:
    """Older than confirmed when it was requested, or newer than all that this run has written."""
    sample = VersionedSample(
        "What is 3+4?", EngineReply(7, version, "engine.0", 1), synced, written
    )
    assert sample.is_stale == is_stale


@pytest.mark.processes
def test_an_environment_that_fails_is_asked_again(
    engines: list[EngineProcess], rewards: FakeServer, trainer: Trainer
) -> None:
    """Each question is asked from the next environment; no two texts to score are the same."""
    rewards.asked.clear()

    def reset(asked: Asked) -> Answer:
        return Answer({"prompt": asked.body["prompt"]})

    with fake_server(reset) as good, fake_server(by_turns(Answer(b"", 500), Answer({}))) as bad:
        environments = f"127.0.0.1:{good.port},127.0.0.1:{bad.port}"
        done = trainer.run(engines, rewards, 2, "--environments", environments)
    assert done.code == 0, done.error
    assert len(bad.asked) >= 2
    assert len(good.asked) == 2 * len({one.body["prompt"] for one in good.asked})
    texts = [text for asked in rewards.asked for text in asked.body["query"]]
    assert len(texts) == len({*texts})


@pytest.mark.processes
def test_a_killed_engine_ends_slimes_trainer(trainer: Trainer, tmp_path: Path) -> None:
    """At the next weight sync, without another try: why a front has to answer for it."""
    with ExitStack() as stack:
        engines = [stack.enter_context(running_engine(tmp_path / f"{n}.jsonl")) for n in range(2)]

        def answer(asked: Asked) -> Answer:
            engines[1].process.kill()
            engines[1].process.wait()
            return Answer({"rewards": [0.0] * len(asked.body["query"])})

        done = trainer.run(engines, stack.enter_context(fake_server(answer)), 40)
    assert done.code == 1
    assert len(done.steps) == 1
    failed = f"rehearsal-async failed: POST http://{engines[1].address}/pause_generation: "
    assert done.error.startswith(failed)


def test_wrong_flags_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong flag is 2, and one line that says what is wrong."""
    flags = ["--engines", ",", "--reward-url", "http://host/", "--weights-dir", "w"]
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 2
    assert "--engines: expected" in capsys.readouterr().err


# --- the frameworks' order and patience -----------------------------------------------------------


def requests(server: FakeServer) -> list[str]:
    """Return the requests to a server in order."""
    return [f"{asked.method} {asked.path}" for asked in server.asked]


def test_slimes_sync_is_in_its_order(tmp_path: Path) -> None:
    """The weights are complete at the update, and gone before the engines go on, unless kept."""
    was_there: dict[str, bool] = {}

    def answer(asked: Asked) -> Answer:
        was_there[asked.path] = (tmp_path / "weight_v000001").exists()
        return Answer(b"")  # only the status is read

    with fake_server(answer) as one, fake_server(answer) as other:
        engines = [f"127.0.0.1:{one.port}", f"127.0.0.1:{other.port}"]
        SlimeWires(engines, tmp_path).sync(POLICY, 1)
        assert requests(one) == requests(other) == SLIME_SYNC
        body = {"model_path": str(tmp_path / "weight_v000001"), "weight_version": "1"}
        assert one.asked[2].body == body
        assert was_there["/update_weights_from_disk"]
        assert not was_there["/continue_generation"]
        assert not (tmp_path / "weight_v000001").exists()
        SlimeWires(engines, tmp_path, keeps=True).sync(POLICY, 1)
    assert read_weights(tmp_path / "weight_v000001") == POLICY


def test_slime_asks_again_for_an_empty_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush is refused while requests run; any other refusal ends the sync."""
    monkeypatch.setattr("agent.bundled.rehearsal_wires.PAUSE", 0.01)
    good = Answer({})
    busy = Answer({"error": "2 requests run"}, 400)
    with fake_server(by_turns(good, busy, busy, good)) as server:
        SlimeWires([f"127.0.0.1:{server.port}"], tmp_path).sync(POLICY, 1)
        flushes = [asked for asked in server.asked if asked.path == "/flush_cache"]
        assert len(flushes) == 3
    with (
        fake_server(by_turns(good, good, busy)) as server,
        pytest.raises(WireError, match="update_weights_from_disk: 400"),
    ):
        SlimeWires([f"127.0.0.1:{server.port}"], tmp_path).sync(POLICY, 1)


def test_prime_rls_sync_is_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is tried ten times while it may pass; two folders stay, marked complete."""
    monkeypatch.setattr("agent.bundled.rehearsal_wires._LONGEST_PAUSE", 0.01)
    good = Answer({})
    busy = Answer("starting", 503)
    with fake_server(by_turns(*([busy] * 9), good)) as server:
        wires = PrimeWires([f"127.0.0.1:{server.port}"], tmp_path)
        for version in range(3):
            assert wires.sync(POLICY, version) == version
        paths = [asked.path for asked in server.asked]
        assert paths[:9] == ["/pause?mode=keep&clear_cache=false"] * 9
        order = ["/pause?mode=keep&clear_cache=false", "/update_weights", "/resume"]
        assert paths[9:] == order * 3
        folder = tmp_path / "broadcasts" / "step_2"
        assert server.asked[-2].body == {"weight_dir": str(folder)}
        assert (folder / "STABLE").exists()
    assert sorted(path.name for path in (tmp_path / "broadcasts").iterdir()) == ["step_1", "step_2"]
    with (
        fake_server(by_turns(busy)) as server,
        pytest.raises(WireError, match="503"),
    ):
        PrimeWires([f"127.0.0.1:{server.port}"], tmp_path).sync(POLICY, 3)
    assert len(server.asked) == 10


def test_prime_rl_loads_what_a_former_attempt_has_left(tmp_path: Path) -> None:
    """Its watcher takes the highest folder: newer ones have to be cleared before an attempt."""
    left = tmp_path / "broadcasts" / "step_9"
    write_weights(left, POLICY)
    (left / "STABLE").touch()
    with fake_server(by_turns(Answer({}))) as server:
        assert PrimeWires([f"127.0.0.1:{server.port}"], tmp_path).sync(POLICY, 4) == 9
    assert server.asked[1].body == {"weight_dir": str(left)}
