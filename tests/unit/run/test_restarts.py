"""Restarted containers: no finished job runs again, and no failure repeats for ever."""

from __future__ import annotations

import errno
import os
import random
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import settings
from msgspec.structs import replace

from agent.base import ends
from agent.base.errors import PreflightError
from agent.processes import parent
from agent.record import files
from agent.run import end as run_end
from agent.run import main, plan_input
from agent.run import restarts as restarts_module
from agent.run.restarts import PastEnd, Restarts, settings_digest
from agent.settings.load import settings_for_end
from support.run_records import NOW, submitted
from support.worlds import MACHINE, POD, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.base.ends import Outcome
    from agent.run.node_run import NodeRun
    from agent.run.run_store import RunStore

JOB = ["python", "train.py"]
KEY = {"RUNPOD_API_KEY": "rpa_0123456789abcdef0123"}
DONE = ends.JOB_SUCCEEDED.outcome(before="")
FAILED = ends.JOB_FAILED.outcome(code=5, code_name="5", place="", message="", before="")
NO_WORKERS = ends.NOT_IN_TIME.outcome(what="workers", evidence="none", remedy="")
LOST = ends.RAY_LOST_ON_HEAD.outcome(evidence="killed")
STOPPED = ends.STOPPED_BY_SIGNAL.outcome(code=143, signal="SIGTERM")
UNFIT = ends.REFUSED.outcome(reason="a port is taken", culprit="ports", remedy="")
BUG = ends.BUG.outcome(error="KeyError: 'x'")
MISHAPS = (NO_WORKERS, LOST, STOPPED, UNFIT, BUG)


@pytest.fixture(autouse=True)
def _the_kernel_takes_the_locks_of_killed_containers() -> Iterator[None]:
    """Close the lock files that their agents held until the end."""
    yield
    for descriptor in map(int, [path.name for path in Path("/proc/self/fd").iterdir()]):
        with suppress(OSError):
            if Path(f"/proc/self/fd/{descriptor}").readlink().name in {".head.lock", ".agent.lock"}:
                os.close(descriptor)


class Container:
    """A container of a platform: the test sets its agents' outcomes, its files stay."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
    ) -> None:
        self.environ = {**environ, "AGENT_LOG_DIR": str(folder), "EXPECTED_WORKERS": "0"}
        self.facts = POD if "RUNPOD_POD_ID" in environ else replace(MACHINE, is_first_process=True)
        self.jobs = 0
        """Jobs that ran to completion."""
        self.held = ""
        self.stays = 0.0
        """The action instead of the exit."""
        self._outcomes: list[Outcome] = []
        monkeypatch.setattr(plan_input, "plan_from_environment", self._plan)
        monkeypatch.setattr(main, "_run_role", self._role)
        for module in (restarts_module, run_end):
            monkeypatch.setattr(module, "hold_by_setting", self._hold)
        monkeypatch.setattr(parent, "is_init", True)

    def start(self, outcome: Outcome, command: list[str] | None = None) -> int:
        """Start the container; return the exit code of an agent with this outcome."""
        self._outcomes.append(outcome)
        self.held = ""
        try:
            return main.run_safely(self.environ, command or JOB).exit_code
        except PreflightError as error:
            return error.end.exit_code

    def _plan(self, environ: dict[str, str], command: list[str]) -> Any:  # noqa: ANN401 - a Plan
        return plan_of(environ, self.facts, command)

    def _role(self, node_run: NodeRun, store: RunStore) -> Outcome:
        outcome = self._outcomes[-1]
        if outcome == UNFIT:
            raise PreflightError("a port is taken", culprit="ports")
        durable = store.durable.starting_ray(node_run.plan.topology.node_name, time.time())
        node_run.folder.become_latest()
        if outcome.is_jobs_verdict:
            self.jobs += 1
            durable = submitted(durable)
        store.put(replace(durable.with_end(outcome, NOW), verdict=outcome), 0.0)
        return anyio.run(run_end.end_role, node_run, outcome)

    async def _hold(
        self, _outcome: Outcome, container: restarts_module.Container, *_asked_to_stop: object
    ) -> None:
        self.held = container.on_done
        self.stays = container.stays


RUNPOD = {"RUNPOD_POD_ID": "podaaa"}
LWS = {"LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": "1", "LWS_LEADER_ADDRESS": "lws-0.lws"}
RULES: dict[str, tuple[dict[str, str], str]] = {
    "runpod": (RUNPOD, "always"),
    "runpod stops": ({**RUNPOD, **KEY, "AGENT_ON_DONE": "stop-pod"}, "always"),
    "runpod terminates": ({**RUNPOD, **KEY, "AGENT_ON_DONE": "terminate-pod"}, "always"),
    "lws holds": ({**LWS, "AGENT_ON_DONE": "hold"}, "always"),
    "machine": ({}, "never"),
}
"""Per platform: its environment, and the containers that it restarts."""


@pytest.mark.parametrize("seed", range(2 * settings().max_examples))
def test_every_end_stops_the_bill(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any outcomes, containers restart a few times only, and no job runs twice."""
    chance = random.Random(seed)  # noqa: S311 - mishaps, no secrets
    environ, rule = RULES[chance.choice([*RULES])]
    pod = Container(tmp_path, monkeypatch, environ)
    mishaps = [chance.choice(MISHAPS) for _ in range(chance.randrange(4))]
    script = [mishap for mishap in mishaps for _ in range(chance.randint(1, 2))]
    final = chance.choice((*MISHAPS, DONE, FAILED))
    starts = 0
    while True:
        outcome = script[starts] if starts < len(script) else final
        pod.start(outcome)
        starts += 1
        if pod.held or rule == "never":
            break
        assert starts <= len(script) + 4, f"it loops with {outcome}"
    assert pod.jobs <= 1
    assert pod.held == ("" if rule == "never" else environ.get("AGENT_ON_DONE", "hold"))
    if pod.jobs:  # a person starts the container again
        assert pod.stays == 0
        pod.start(DONE)
        assert (pod.stays > 0) == (environ.get("AGENT_ON_DONE") == "stop-pod")
        assert pod.jobs == 1 or rule == "never"
        assert pod.held or rule == "never"


@pytest.mark.parametrize("outcome", [DONE, FAILED])
def test_a_finished_job_is_not_run_again(
    outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded code again; another command, another setting or AGENT_RERUN=1 is a new run."""
    pod = Container(tmp_path, monkeypatch, RUNPOD)
    assert pod.start(outcome) == outcome.exit_code
    for _ in range(3):
        assert pod.start(DONE) == outcome.exit_code
        assert (pod.jobs, pod.held) == (1, "hold")
    pod.start(DONE, ["python", "other.py"])
    assert pod.jobs == 2
    pod.environ["AGENT_NODE_GRACE"] = "90s"
    pod.start(DONE, ["python", "other.py"])
    assert pod.jobs == 3
    pod.environ["AGENT_RERUN"] = "1"
    pod.start(DONE, ["python", "other.py"])
    assert pod.jobs == 4


def test_a_finished_job_is_not_run_again_after_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record is opened again: on a network disk the first handle may be of the former file."""
    machine = Container(tmp_path, monkeypatch, RUNPOD)
    assert machine.start(DONE) == 0
    read_small = files.read_small
    refused = set[Path]()

    def refuse_first(path: Path) -> str:
        if path.exists() and path not in refused:
            refused.add(path)
            raise OSError(errno.ESTALE, "Stale file handle")
        return read_small(path)

    monkeypatch.setattr(files, "read_small", refuse_first)
    assert machine.start(DONE) == 0
    assert machine.jobs == 1
    assert {"run.json", "podaaa.json"} <= {path.name for path in refused}


def test_a_command_that_is_typed_again_is_a_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs unless it is the first process of a restarted container on such a platform."""
    shell = Container(tmp_path, monkeypatch, RUNPOD)
    shell.facts = replace(POD, is_first_process=False)
    monkeypatch.setattr(parent, "is_init", False)
    assert [shell.start(DONE), shell.start(FAILED)] == [0, 5]
    docker = Container(tmp_path / "docker", monkeypatch, {})
    assert [docker.start(DONE), docker.start(FAILED)] == [0, 5]


@pytest.mark.parametrize(
    ("environ", "starts", "jobs"),
    [
        (RUNPOD, [(LOST, 75, ""), (DONE, 0, "hold")], 1),
        (LWS, [(FAILED, 5, ""), (DONE, 5, ""), (DONE, 5, "")], 1),
        (RUNPOD, [*[(NO_WORKERS, 69, "")] * 3, (NO_WORKERS, 69, "hold")], 0),
    ],
    ids=[
        "a restart after a loss begins the job again",
        "a LeaderWorkerSet starts its pods anew after any exit: the recorded code again",
        "three restarts are allowed, the fourth end of one cause is held",
    ],
)
def test_starts_of_a_container(
    environ: dict[str, str],
    starts: list[tuple[Outcome, int, str]],
    jobs: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each exit code, and whether the container is held."""
    pod = Container(tmp_path, monkeypatch, environ)
    for outcome, code, held in starts:
        assert (pod.start(outcome), pod.held) == (code, held)
    assert pod.jobs == jobs


def test_the_workers_receive_the_fourth_equal_end_as_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So their pods are held or stopped with the head's; on a pod that exits nothing changes."""
    # no two agents start in one millisecond, by which their ends are distinguished
    monkeypatch.setattr(time, "time", count(time.time()).__next__)
    for holds, is_verdict in ((True, True), (False, False)):
        root = tmp_path / str(holds)
        restarts = Restarts(root, "pod", "d", is_on=True, holds=holds, longest=600.0)
        for _ in range(3):
            assert restarts.final(NO_WORKERS) == NO_WORKERS
            restarts.record("run", NO_WORKERS)
            restarts = Restarts(root, "pod", "d", is_on=True, holds=holds, longest=600.0)
        assert restarts.final(NO_WORKERS).holds_pod == is_verdict
        assert not restarts.final(LOST).holds_pod


def end_at(began: int, seconds: int, outcome: Outcome = LOST, digest: str = "d") -> PastEnd:
    """Return an outcome of an agent that began at a second of an hour."""

    def at(second: int) -> str:
        return f"2026-01-01T{second // 3600:02}:{second % 3600 // 60:02}:{second % 60:02}Z"

    return PastEnd(digest, "run", at(began), at(began + seconds), outcome)


@pytest.mark.parametrize(
    ("past", "count"),
    [
        ([end_at(0, 5)], 0),
        ([end_at(0, 5), end_at(10, 5), end_at(20, 5)], 2),
        ([end_at(0, 5, DONE), end_at(10, 5), end_at(20, 5)], 1),
        ([end_at(0, 5, digest="other"), end_at(10, 5)], 0),
        ([end_at(0, 5), end_at(2000, 5)], 0),
        ([end_at(0, 5), end_at(10, 4000), end_at(4020, 5)], 0),
        ([end_at(0, 5), end_at(10, 4000)], 0),
    ],
)
def test_which_restarts_are_quick(past: list[PastEnd], count: int) -> None:
    """Equal settings and cause, soon after the end, and no progress beyond the boot."""
    before = None
    for end in past:
        before = end.after(before, longest=1800.0)
    assert before is not None
    assert before.quick_restarts == count


def test_the_digest_is_of_the_job() -> None:
    """Secrets and the action at the end do not change it; a setting and the command do."""
    plain = settings_digest({"AGENT_MODEL": "m"}, JOB)
    more = {"AGENT_MODEL": "m", "AGENT_ON_DONE": "hold", "AGENT_RERUN": "1", "OTHER": "x"}
    assert settings_digest(more, JOB) == plain
    assert settings_digest({"AGENT_MODEL": "n"}, JOB) != plain
    assert settings_digest({"AGENT_MODEL": "m"}, None) != plain
    one, other = ({"RAY_AUTH_TOKEN": token} for token in ("a" * 20, "b" * 20))
    assert settings_digest(one, JOB) == settings_digest(other, JOB)


def test_wrong_settings_do_not_hide_how_to_end() -> None:
    """If settings are invalid, those about the end are still read where valid."""
    found = settings_for_end({**KEY, "AGENT_ON_DONE": "stop-pod", "AGENT_PORT": "x"})
    assert found.on_done == "stop-pod"
    found = settings_for_end({**KEY, "AGENT_ON_DONE": "sleep", "AGENT_LOG_DIR": "/logs"})
    assert (found.on_done, found.log_dir) == (None, "/logs")
    assert settings_for_end({"AGENT_ON_DONE": "stop-pod"}).on_done is None
