"""The pure part of chaos: a seed's faults, the permitted results, and stored results."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tools.chaos import cli, model
from tools.chaos import plan as p
from tools.chaos.hands import DRIVER, Node
from tools.chaos.model import Beat, head_codes, worker_codes, wrong_attempts, wrong_ends
from tools.chaos.plan import CHANCES, InjectedFault, plan
from tools.chaos.results import Result, load, save, table
from tools.chaos.seed import read_beats
from tools.lab import ProcessInfo

if TYPE_CHECKING:
    from pathlib import Path

    from tools.lab import Container, Running

AGENT_DIES = InjectedFault(30.0, p.KILL, p.AGENT, 1)
WORKER_DIES = InjectedFault(30.0, p.KILL, p.POD, 1, 5.0)
REWARD_DIES = InjectedFault(30.0, p.KILL, p.REWARD, 0)


def test_a_seed_always_gives_the_same_faults() -> None:
    """A failure is repeated by its seed; another seed gives other faults."""
    assert plan(7, 200.0) == plan(7, 200.0)
    assert plan(7, 200.0) != plan(8, 200.0)


@pytest.mark.parametrize("seed", range(30))
def test_faults_are_sorted_and_within_the_time(seed: int) -> None:
    """Each is one of the kinds, after the first seconds, and undone within its maximum."""
    found = plan(seed, 100.0)
    assert [one.at for one in found] == sorted(one.at for one in found)
    for one in found:
        (chance,) = [c for c in CHANCES if (c.kind, c.what) == (one.kind, one.what)]
        assert p.FIRST_AT < one.at < 100
        assert 0 <= one.pod < (1 if chance.only_head else p.PODS)
        assert one.lasts is None or one.lasts <= max(chance.longest, 0.0)
        assert one.lasts is not None or chance.may_stay


def test_a_longer_time_begins_as_a_shorter_one_does() -> None:
    """The first minute of a seed is the same for any duration."""
    long = plan(3, 200.0)
    assert plan(3, 60.0) == long[: len(plan(3, 60.0))]


def test_every_kind_of_fault_occurs() -> None:
    """Twenty seeds of 200 s include every kind, on workers too."""
    found = {(one.kind, one.what) for seed in range(20) for one in plan(seed, 200.0)}
    assert found == {(chance.kind, chance.what) for chance in CHANCES}
    assert any(one.lasts is None for seed in range(20) for one in plan(seed, 200.0))


@pytest.mark.parametrize(
    ("done", "may"),
    [
        ([], {7}),
        ([AGENT_DIES], {7}),
        ([REWARD_DIES], {7}),
        ([REWARD_DIES] * 4, {7, 69}),
        ([WORKER_DIES], {7, 75, 9}),
        ([InjectedFault(30.0, p.KILL, p.DRIVER, 0)], {7, 137}),
        ([InjectedFault(30.0, p.KILL, p.ACTOR, 2)], {7, 9}),
        (
            [
                InjectedFault(30.0, p.DISK, "full", 0, 9.0),
                InjectedFault(30.0, p.DNS, p.SILENT, 0, 9.0),
            ],
            {7},
        ),
        ([InjectedFault(3.0, p.KILL, p.REWARD, 0)], {7, 69}),
        ([InjectedFault(3.0, p.STOP, p.RAYLET, 1, 9.0)], {7, 9, 69, 75}),
        ([InjectedFault(30.0, p.KILL, p.AGENT, 0)] * 4, {7, 70}),
    ],
)
def test_what_a_head_may_end_with(done: list[InjectedFault], may: set[int]) -> None:
    """A harmless fault changes nothing; a loss permits its code, and no other."""
    assert head_codes(done, began=20.0) == may


def test_a_worker_ends_as_its_head_or_by_a_loss_of_its_own() -> None:
    """Without a loss its code is the head's; after one it may have its own cause."""
    assert worker_codes([AGENT_DIES], 1, 7, 20.0) == {7}
    assert worker_codes([WORKER_DIES], 1, 9, 20.0) == {9, 69, 75}
    assert worker_codes([AGENT_DIES] * 4, 1, 7, 20.0) == {7, 70}
    assert worker_codes([AGENT_DIES], 1, None, 20.0) == {7}
    head_dies = replace(WORKER_DIES, pod=0)
    assert worker_codes([head_dies], 1, 69, 20.0) == {7, 9, 69, 75}


def test_a_wrong_exit_code_is_reported_with_the_permitted_ones() -> None:
    """Pods that were killed for good may have no code."""
    ends = {0: 7, 1: 75, 2: None}
    assert wrong_ends([REWARD_DIES], ends, 20.0) == ["pod1 ended with 75, permitted: 7"]
    assert wrong_ends([WORKER_DIES], ends, 20.0) == []


def test_overlapping_attempts_are_reported() -> None:
    """An attempt's last beat comes before the first of the next, in every process."""
    one, two = Beat(1, "driver", 20.0, 40.0), Beat(2, "driver", 50.0, 60.0)
    assert wrong_attempts([WORKER_DIES], [one, two]) == []
    late = Beat(1, "actor-10.77.0.12", 21.0, 52.0)
    assert wrong_attempts([WORKER_DIES], [one, late, two]) == [
        "attempt 1 ran on in actor-10.77.0.12 for 2.0 s beside attempt 2"
    ]


def test_too_many_attempts_are_reported() -> None:
    """Without a loss there is one, and never more than the retries plus one."""
    beats = [Beat(n, "driver", 10.0 * n, 10.0 * n + 5) for n in range(1, model.RETRIES + 3)]
    assert wrong_attempts([], beats[:2]) == ["attempt 2 was made, permitted: 1"]
    assert wrong_attempts([WORKER_DIES], beats[:3]) == []
    assert wrong_attempts([WORKER_DIES], beats) == ["attempt 4 was made, permitted: 3"]


@pytest.mark.parametrize(
    ("what", "pids"),
    [
        (p.AGENT, [7]),
        (p.GCS, [11]),
        (p.RAYLET, [12]),
        (p.DASHBOARD, [13]),
        (p.REWARD, [14]),
        (p.DRIVER, [16]),
        (p.ACTOR, [17]),
    ],
)
def test_the_targets_of_a_fault_are_found(what: str, pids: list[int]) -> None:
    """By parent, name or command line; never the agent's parent, zombies, or a shell."""
    run = f"python /bin/pod-agent run -- {DRIVER} /shared"
    listed = [
        (1, 0, "sleep", "sleep infinity"),
        (5, 0, "pod-agent", run),
        (7, 5, "pod-agent", run),
        (11, 8, "gcs_server", "/ray/gcs_server --port=6379"),
        (12, 8, "raylet", "/ray/raylet --gcs=10.77.0.10:6379"),
        (13, 8, "ray-dashboard-H", "ray-dashboard-Head"),
        (14, 7, "python", "python /bin/pod-agent reward-server --host 10.77.0.10"),
        (15, 12, "sh", f"/bin/sh -c {DRIVER} /shared"),
        (16, 15, "python", f"{DRIVER} /shared"),
        (17, 12, "ray::Heart.aliv", "ray::Heart.alive"),
    ]
    infos = [ProcessInfo(n, parent, 100 + n, "S", name, line) for n, parent, name, line in listed]
    infos.append(ProcessInfo(20, 12, 120, "Z", "raylet", "[raylet]"))
    container = SimpleNamespace(processes=lambda: infos)
    node = Node(cast("Container", container), cast("Running", SimpleNamespace(pid=105)))
    assert [info.pid for info in node.find(what)] == pids


def test_beats_are_read_from_the_ledger(tmp_path: Path) -> None:
    """By attempt and place, in seconds of the run; a process without timestamps is ignored."""
    (tmp_path / "1.driver.77").write_text("105.00\n105.20\n107.00\n")
    (tmp_path / "2.actor-10.77.0.10.78").write_text("")
    assert read_beats(tmp_path, 100.0) == [Beat(1, "driver", 5.0, 7.0)]


def test_results_are_stored_and_counted(tmp_path: Path) -> None:
    """By seed and duration; failures are listed with their seed."""
    good = Result(3, 60.0, 2, ("4 s: kill agent of pod1",), (7, 7, None), 1, 9.0, ())
    bad = Result(4, 60.0, 0, (), (7, 75, 7), 1, 70.0, ("it hung",))
    save(tmp_path, good)
    assert load(tmp_path, 3, 60.0) == good
    assert load(tmp_path, 3, 200.0) is load(tmp_path, 4, 60.0) is None
    assert table([good, bad]).splitlines() == [
        "seed 3, 60 s: as predicted (1 of 2 faults hit, 1 attempt(s), exit codes 7, 7, none, 9 s)",
        "seed 4, 60 s: it hung (0 of 0 faults hit, 1 attempt(s), exit codes 7, 75, 7, 70 s)",
        "1 of 2 as predicted",
    ]


def test_a_seed_that_held_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run executes only seeds that failed or never ran."""
    tried: list[int] = []

    def attempt(seed: int, seconds: float, _keep: Path, _say: object) -> Result:
        tried.append(seed)
        return Result(seed, seconds, 3, (), (7, 7, 7), 1, 70.0, ("it hung",) if seed == 2 else ())

    monkeypatch.setattr(cli, "FOLDER", tmp_path)
    monkeypatch.setattr(cli, "attempt", attempt)
    for _ in range(2):
        for seed in (1, 2):
            cli.one_seed(seed, 60.0, again=False)
    assert tried == [1, 2, 2]


def test_the_faults_of_a_seed_are_printed_without_applying_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """--show prints the faults."""
    assert cli.main(["--show", "--seeds", "1", "--first", "5", "--seconds", "60"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "seed 5:"
    assert len(said) == 1 + len(plan(5, 60.0))
