"""The rehearsal shares samples evenly, needs no package on nodes, and names what it lacks."""

from __future__ import annotations

import math
import os
import random
import select
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.bundled.rehearsal import (
    ANSWERS,
    Rollout,
    Sample,
    advantages,
    exercises,
    main,
    probabilities,
    updated,
    write_private,
)
from support.fake_server import Answer, FakeServer, by_turns, fake_server
from support.reward_process import ROOT, SECONDS, reward_server

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

REHEARSAL = (sys.executable, "-m", "agent.bundled.rehearsal", "--reward-url", "http://127.0.0.1:9/")


def certain(*, right: bool) -> list[Sample]:
    """Two samples of a policy that is certain of one answer."""
    weights = [0.0] * ANSWERS
    weights[7 if right else 3] = 1.0
    return [(seed, "What is 3+4?", "7", weights) for seed in ("a", "b")]


@pytest.mark.processes
def test_a_rollout_gets_real_rewards() -> None:
    """Its answers are scored by the server, prompt by prompt."""
    with reward_server() as server:
        reply = Rollout(server.url).step([*certain(right=True), *certain(right=False)])
    assert reply == [(7, 1.0), (7, 1.0), (3, 0.0), (3, 0.0)]


@pytest.mark.processes
def test_a_rollout_returns_the_servers_refusal() -> None:
    """The message has the server's own text."""
    with reward_server() as server:
        reply = Rollout(server.at("/score")).step(certain(right=True))
    assert isinstance(reply, str)
    assert "refuses to score: 404" in reply
    assert "/get_reward" in reply


def test_a_rollout_names_an_unreachable_server() -> None:
    """The message has the address and the reason."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/get_reward"
    reply = Rollout(url, 0.4).step(certain(right=True))
    assert isinstance(reply, str)
    assert url in reply
    assert "refused" in reply


def answering(*replies: Answer) -> AbstractContextManager[FakeServer]:
    """Serve these replies, one after the other."""
    return fake_server(by_turns(*replies))


def pause(server: FakeServer) -> float:
    """Return the seconds between the first two requests."""
    first, second, *_ = server.asked
    return second.at - first.at


GOOD = Answer(b'{"rewards": [1, 0.5]}')
EARNED = [(7, 1.0), (7, 0.5)]


@pytest.mark.parametrize("asked", ["86400", "Wed, 21 Oct 2065 07:28:00 GMT", "-1", "1e9"])
def test_retry_after_is_limited(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long Retry-After does not use up the step's deadline."""
    monkeypatch.setattr("agent.bundled.rehearsal._LONGEST_PAUSE", 0.2)
    with answering(Answer(b"{}", 503, {"Retry-After": asked}), GOOD) as server:
        assert Rollout(server.url).step(certain(right=True)) == EARNED
    assert pause(server) < 2.0


@pytest.mark.parametrize(
    ("reply", "least"),
    [
        (Answer(b"{}", 503, {"Retry-After": "1"}), 1.0),
        (Answer(b"busy", 503, {"Retry-After": "0"}), 0.0),
        (Answer(b"oops", 500), 0.0),
        (Answer(b"later", 429, {"Retry-After": "soon"}), 0.0),
        (Answer(b"{}", 200, {"Content-Length": "9"}), 0.0),
    ],
)
def test_temporary_failures_are_retried(reply: Answer, least: float) -> None:
    """After the pause that the server asks for; the rewards of the second reply are used."""
    with answering(reply, GOOD) as server:
        assert Rollout(server.url).step(certain(right=True)) == EARNED
    assert len(server.asked) == 2
    assert pause(server) >= least


def test_a_rollout_ends_with_the_last_reply() -> None:
    """The message has the last reply."""
    with answering(Answer({"error": "busy"}, 503, {"Retry-After": "0"})) as server:
        reply = Rollout(server.url, 0.5).step(certain(right=True))
    assert isinstance(reply, str)
    assert 'returned no rewards for 0.5 s: 503 {"error": "busy"}; is it up' in reply


HUGE = b"9" * 400  # no float can hold it
NO_REWARDS = "and not `rewards` with 2 finite numbers"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(b'{"error": "labels: 2, not 1"}', 400), "refuses to score: 400"),
        (Answer(b"no such page", 404), "refuses to score: 404 no such page"),
        (Answer(b"<html>"), f"replied '<html>', {NO_REWARDS}"),
        (Answer(b"[]"), NO_REWARDS),
        (Answer(b"no JSON"), NO_REWARDS),
        (Answer(b'{"rewards": []}'), NO_REWARDS),
        (Answer(b'{"rewards": [1]}'), NO_REWARDS),
        (Answer(b'{"rewards": [1, "1"]}'), NO_REWARDS),
        (Answer(b'{"rewards": [1, NaN]}'), NO_REWARDS),
        (Answer(b'{"rewards": [1, 1e999]}'), NO_REWARDS),
        (Answer(b'{"rewards": [1, %s]}' % HUGE), NO_REWARDS),
        (Answer(b'{"rewards": [1, %s]}' % (HUGE * 20)), NO_REWARDS),
    ],
)
def test_an_invalid_reply_is_not_tried_again(answer: Answer, words: str) -> None:
    """No reward is guessed."""
    with answering(answer) as server:
        reply = Rollout(server.url).step(certain(right=True))
    assert isinstance(reply, str)
    assert words in reply
    assert len(server.asked) == 1


def test_a_rollout_ignores_proxy_netrc_and_redirects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request goes to the given URL with our headers only."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    moved = Answer(b"moved", 302, {"Location": "http://127.0.0.1:9/"})
    with answering(GOOD, moved) as server:
        rollout = Rollout(server.url)
        assert rollout.step(certain(right=True)) == EARNED
        assert rollout.step(certain(right=True)) == f"{server.url} refuses to score: 302 moved"
    assert not any("Authorization" in asked.headers for asked in server.asked)


@pytest.mark.processes
def test_a_rollout_needs_no_package_on_its_node(tmp_path: Path) -> None:
    """Pickled by value, it works beside another package of the same name."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "__init__.py").write_text("raise RuntimeError('the wrong agent')")
    pickled = tmp_path / "rollout.pickle"
    dump = (
        "import sys, ray.cloudpickle as c; from agent.bundled import rehearsal\n"
        "c.register_pickle_by_value(rehearsal)\n"
        "open(sys.argv[1], 'wb').write(c.dumps(rehearsal.Rollout))"
    )
    load = (
        "import sys, pickle; sys.path.insert(0, '.')\n"
        "print(pickle.load(open(sys.argv[1], 'rb'))('http://127.0.0.1:9/').__class__.__name__)\n"
        "assert 'agent' not in sys.modules"
    )
    run(["-c", dump, str(pickled)], ROOT)
    assert run(["-I", "-c", load, str(pickled)], tmp_path) == "Rollout\n"


def run(arguments: list[str], folder: Path) -> str:
    """Run Python there; return its stdout."""
    command = [sys.executable, *arguments]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_a_signal_ends_it_at_once(tmp_path: Path, number: signal.Signals) -> None:
    """The exit code is 128+n, even while Ray waits for a cluster."""
    with socket.create_server(("", 0)) as silent:  # Ray puts the node's address for loopback
        process = subprocess.Popen(
            [*REHEARSAL, "--out", str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "RAY_ADDRESS": f"127.0.0.1:{silent.getsockname()[1]}"},
        )
        try:
            assert select.select([silent], [], [], SECONDS)[0]  # Ray has connected
            process.send_signal(number)
            assert process.wait(5) == 128 + number
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([], "--reward-url"),
        (["--reward-url", "http://host/", "--step", "3", "--wrong"], "--wrong"),
        (["--reward-url", "ftp://host/"], "--reward-url"),
        (["--reward-url", "http://host/", "--steps", "0"], "--steps"),
        (["--reward-url", "http://host/", "--nodes", "x"], "--nodes"),
        (["--reward-url", "http://host/", "--group", "1"], "--group"),
    ],
)
def test_wrong_flags_are_usage_errors(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong flag is 2, and one line that says what is wrong."""
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith("pod-agent rehearsal: error: ")
    assert named in shown
    assert shown.count("\n") == 1


@pytest.mark.processes
def test_an_unwritable_folder_is_refused_first(tmp_path: Path) -> None:
    """It ends with 78 before it connects to Ray."""
    (tmp_path / "file").write_text("")
    command = [*REHEARSAL, "--out", str(tmp_path / "file" / "out")]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ended.returncode == 78
    assert "--out" in ended.stderr


# --- learning ------------------------------------------------------------------------------------


@given(st.lists(st.floats(-500, 500), min_size=2, max_size=12))
def test_probabilities_sum_to_one(logits: list[float]) -> None:
    """Softmax is valid for any logits."""
    assert math.isclose(sum(probabilities(logits)), 1.0)


def test_equal_rewards_change_nothing() -> None:
    """If all answers are right or all wrong, advantages are 0 and the policy does not change."""
    assert advantages([1.0] * 4) == [0.0] * 4
    assert updated([0.3] * ANSWERS, [1, 2], [0.0, 0.0]) == [0.3] * ANSWERS


@given(
    st.lists(st.floats(-5, 5), min_size=ANSWERS, max_size=ANSWERS),
    st.lists(st.tuples(st.integers(0, 9), st.floats(-1, 1)), min_size=2, max_size=16),
)
def test_an_update_follows_the_gradient(
    logits: list[float], group: list[tuple[int, float]]
) -> None:
    """It is the numeric gradient of the mean of advantage times log-probability."""
    answers, rewards = [answer for answer, _ in group], [reward for _, reward in group]
    worth = advantages(rewards)

    def objective(row: list[float]) -> float:
        logs = [math.log(max(one, 1e-300)) for one in probabilities(row)]
        gains = (value * logs[answer] for answer, value in zip(answers, worth, strict=True))
        return sum(gains) / len(answers)

    for place, (before, after) in enumerate(
        zip(logits, updated(logits, answers, rewards), strict=True)
    ):
        step = [0.0] * ANSWERS
        step[place] = 1e-4
        above = objective([a + b for a, b in zip(logits, step, strict=True)])
        below = objective([a - b for a, b in zip(logits, step, strict=True)])
        assert math.isclose(after - before, (above - below) / 2e-4, abs_tol=1e-4)


def test_exercises_are_different_additions_of_one_digit() -> None:
    """Their labels are right, a guess is right once in ten, and the seed decides which."""
    drawn = exercises(24, seed=7)
    assert len(set(drawn)) == 24
    assert drawn == exercises(24, seed=7) != exercises(24, seed=8)
    assert {len(label) for _, label in exercises(1000, seed=0)} == {1}
    assert len(exercises(1000, seed=0)) == 55


@pytest.mark.parametrize("seed", range(5))
def test_the_reward_rises_from_chance_to_the_target(seed: int) -> None:
    """Without Ray and HTTP, any seed starts near 0.1 and ends above 0.9 after 40 steps."""
    tasks = exercises(24, seed)
    policy = [[0.0] * ANSWERS for _ in tasks]
    means = []
    for step in range(40):
        earned = 0.0
        for index, (_, label) in enumerate(tasks):
            draw = random.Random(f"{seed}:{step}:{index}")  # noqa: S311 # no secret
            answers = draw.choices(range(ANSWERS), probabilities(policy[index]), k=16)
            rewards = [float(str(answer) == label) for answer in answers]
            policy[index] = updated(policy[index], answers, rewards)
            earned += sum(rewards)
        means.append(earned / len(tasks) / 16)
    assert abs(means[0] - 1 / ANSWERS) < 0.06
    assert sum(means[-3:]) / 3 > 0.95


@pytest.mark.parametrize(("folder", "file"), [(0o700, 0o600), (0o750, 0o640), (0o755, 0o644)])
def test_the_curve_is_as_private_as_its_folder(tmp_path: Path, folder: int, file: int) -> None:
    """AGENT_LOG_MODE decides on the run folder's mode, and so on the curve's."""
    tmp_path.chmod(folder)
    curve = tmp_path / "curve.json"
    curve.write_text("of an earlier attempt")
    curve.chmod(0o666)
    assert write_private(curve, "{}").read_text() == "{}"
    assert curve.stat().st_mode & 0o777 == file
