"""The rehearsal deals its samples fairly, travels by value, and says what it lacks."""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agent.bundled.grpo import ANSWERS, problems
from agent.bundled.rehearsal import main, shares
from agent.bundled.rollout import Rollout, Share
from reward_process import ROOT, SECONDS, reward_server

if TYPE_CHECKING:
    from pathlib import Path

REHEARSAL = [
    sys.executable,
    "-m",
    "agent.bundled.rehearsal",
    "--reward-url",
    "http://127.0.0.1:9/",
]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_samples_do_not_depend_on_the_nodes(count: int) -> None:
    """Dealt to any number of nodes, a step's samples are the same, and evenly shared."""
    options = argparse.Namespace(group=16, seed=3)
    tasks = problems(24, 3)
    policy = [[0.0] * ANSWERS for _ in tasks]
    (alone,) = shares(options, 5, tasks, policy, 1)
    dealt = shares(options, 5, tasks, policy, count)
    loads = [sum(len(share.seeds) for _, share in own) for own in dealt]
    assert max(loads) - min(loads) <= 1
    together: dict[int, list[str]] = {}
    for own in dealt:
        for problem, share in own:
            together.setdefault(problem, []).extend(share.seeds)
    assert together == {problem: share.seeds for problem, share in alone}


def share(*, right: bool) -> Share:
    """Two samples of a policy that is certain of one answer."""
    weights = [0.0] * ANSWERS
    weights[7 if right else 3] = 1.0
    return Share("What is 3+4?", "7", weights, ["a", "b"])


def test_a_rollout_earns_real_rewards() -> None:
    """What it draws is scored by the server, prompt by prompt."""
    with reward_server() as server:
        reply = Rollout(server.url).step([share(right=True), share(right=False)])
    assert reply == [([7, 7], [1.0, 1.0]), ([3, 3], [0.0, 0.0])]


def test_a_rollout_says_what_the_server_refused() -> None:
    """A refusal comes back as a sentence with the server's own words."""
    with reward_server() as server:
        reply = Rollout(server.at("/score")).step([share(right=True)])
    assert isinstance(reply, str)
    assert "replied 404" in reply
    assert "/get_reward" in reply


def test_a_rollout_says_that_the_server_is_not_there() -> None:
    """An address where nobody listens is named, with the reason."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/get_reward"
    reply = Rollout(url).step([share(right=True)])
    assert isinstance(reply, str)
    assert url in reply
    assert "refused" in reply


def test_a_rollout_needs_no_package_where_it_runs(tmp_path: Path) -> None:
    """Pickled by value, it works beside a foreign package of the same name."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "__init__.py").write_text("raise RuntimeError('the wrong agent')")
    pickled = tmp_path / "rollout.pickle"
    dump = (
        "import sys, ray.cloudpickle as c; from agent.bundled import rollout\n"
        "c.register_pickle_by_value(rollout)\n"
        "open(sys.argv[1], 'wb').write(c.dumps(rollout.Rollout))"
    )
    load = (
        "import sys, pickle; sys.path.insert(0, '.')\n"
        "print(pickle.load(open(sys.argv[1], 'rb'))('http://127.0.0.1:9/').ready())\n"
        "assert 'agent' not in sys.modules"
    )
    run(["-c", dump, str(pickled)], ROOT)
    assert run(["-I", "-c", load, str(pickled)], tmp_path) == "True\n"


def run(arguments: list[str], folder: Path) -> str:
    """Run Python there; return its stdout."""
    command = [sys.executable, *arguments]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_no_cluster_is_told_with_its_remedy(tmp_path: Path) -> None:
    """Where nothing answers at RAY_ADDRESS: 78 within seconds, and how to start one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ended = subprocess.run(
        [*REHEARSAL, "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 78
    assert ended.stdout == ""
    assert address in ended.stderr
    assert "ray start --head" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(("number", "inside_ray"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_a_signal_ends_it_at_once(
    tmp_path: Path,
    number: signal.Signals,
    inside_ray: bool,  # noqa: FBT001 # a column of the table above
) -> None:
    """A signal ends it with 128+n, even while Ray waits for a cluster that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = subprocess.Popen(
            [*REHEARSAL, "--out", str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "RAY_ADDRESS": f"127.0.0.1:{silent.getsockname()[1]}"},
            stderr=subprocess.PIPE,
        )
        try:
            # It asks the address itself; then Ray does, and after 5 s complains on stderr.
            assert select.select([silent], [], [], SECONDS)[0]
            if inside_ray:
                assert process.stderr
                assert select.select([process.stderr], [], [], SECONDS)[0]
            process.send_signal(number)
            assert process.wait(5) == 128 + number
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([], "--reward-url"),
        (["--reward-url", "ftp://host/"], "--reward-url"),
        (["--reward-url", "http://host/", "--steps", "0"], "--steps"),
        (["--reward-url", "http://host/", "--nodes", "x"], "--nodes"),
        (["--reward-url", "http://host/", "--group", "1"], "--group"),
        (["--reward-url", "http://host/", "--kl", "nan"], "--kl"),
    ],
)
def test_wrong_flags_are_usage_errors(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong flag is 2, and names the flag."""
    assert main(flags) == 2
    assert named in capsys.readouterr().err


def test_an_unwritable_folder_is_told_first(tmp_path: Path) -> None:
    """A folder that cannot be made ends it with 78, before Ray is asked for anything."""
    (tmp_path / "file").write_text("")
    ended = subprocess.run(
        [*REHEARSAL, "--out", str(tmp_path / "file" / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 78
    assert "--out" in ended.stderr
