"""The end of a run with what its logs show: the remedy, and the cause for the next attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio
import pytest
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.diagnosis.searched_log import Log
from agent.record.job_lines import KnownLines
from agent.record.node_record import own_record
from agent.record.run_folder import RunFolder
from agent.run import diagnose as explained_module
from agent.run.diagnose import Elsewhere, diagnose_end, explain_end, find_cause
from agent.settings.redact import redactor_for
from support.node_runs import made_run
from support.worlds import SECRET, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.bridge.link import RayLink
    from agent.decisions.attempts import FailureCause
    from agent.run.node_run import NodeRun


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[NodeRun]:
    """Return a head's run whose folder lies in tmp_path."""
    environ = {"AGENT_LOG_DIR": str(tmp_path), "RAY_AUTH_TOKEN": SECRET, "AGENT_REWARD": "builtin"}
    plan = plan_of(environ, command=["true"])
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    made = made_run(plan, redactor, RunFolder(tmp_path, "run-1", "node-a"), 0.0, "run-1")
    yield made
    made.close()


def outcome_of(run: NodeRun, kind: Kind, remedy: str = "") -> Outcome:
    """Return an outcome with its remedy."""
    return anyio.run(explain_end, run, Outcome(kind, 1, "the job failed", remedy=remedy)).outcome


def test_a_failed_job_is_explained_by_its_output(run: NodeRun) -> None:
    """The remedy names the log, keeps the existing text, and shows no secret."""
    text = f"Failed to initialize NVML: {SECRET}\n"
    run.folder.file("job.log").write_text("x" * (300 << 10) + "\n" + text)
    what_to_do = outcome_of(run, Kind.JOB_FAILED, "Its output is in job.log").remedy
    assert what_to_do.startswith("NVIDIA's driver is not there, does not run, or finds no GPU (")
    assert what_to_do.endswith("Its output is in job.log")
    assert SECRET not in what_to_do


def test_a_cause_of_another_node_explains_a_failed_job(run: NodeRun) -> None:
    """If the output here has no cause; a lost node is its own explanation."""
    there = Log("pod2", "the job's output", "torch.OutOfMemoryError: CUDA out of memory. Tried")

    def remedy(kind: Kind) -> str:
        failed = Outcome(kind, 1, "it failed")
        return anyio.run(explain_end, run, failed, Elsewhere((there,))).outcome.remedy

    assert remedy(Kind.JOB_FAILED).startswith("a GPU ran out of memory on pod2. ")
    assert remedy(Kind.LOST) == ""
    run.folder.file("job.log").write_text(OPEN_FILES)
    assert remedy(Kind.JOB_FAILED).startswith("the limit of open")


OPEN_FILES = "Failed accept4: Too many open files\n"
NO_MODULE = "ModuleNotFoundError: No module named 'nosuch'\n"
SERVICE_LOG = "reward-server.log"
REMEDIES = {
    "no log": ("job.log", "", Kind.UNAVAILABLE, ""),
    "Ray's log for a job's own failure": ("ray-start.log", OPEN_FILES, Kind.JOB_FAILED, ""),
    "Ray's log for a lost Ray": ("ray-start.log", OPEN_FILES, Kind.LOST, "the limit of open"),
    "a success": ("job.log", OOM, Kind.DONE, ""),
    "a stop": ("job.log", OOM, Kind.STOPPED, ""),
    "a refusal": ("job.log", OOM, Kind.REFUSED, ""),
    "a bug": ("job.log", OOM, Kind.BUG, ""),
    "a service": (SERVICE_LOG, NO_MODULE, Kind.UNAVAILABLE, "the Python of reward server lacks"),
    "the job": ("job.log", NO_MODULE, Kind.JOB_FAILED, "the job's Python lacks a module"),
}


@pytest.mark.parametrize(("log", "text", "kind", "start"), REMEDIES.values(), ids=REMEDIES)
def test_a_log_explains_some_ends(
    run: NodeRun, log: str, text: str, kind: Kind, start: str
) -> None:
    """Not a run that succeeded, or has its own reason; Ray's packages help the job alone."""
    run.folder.file(log).write_text(text)
    remedy = outcome_of(run, kind, "Look there").remedy
    assert remedy.startswith(start)
    assert remedy.endswith("Look there")
    assert bool(start) == (remedy != "Look there")
    assert ("AGENT_RUNTIME_ENV" in remedy) == start.startswith("the job's Python")


def test_a_full_disk_of_rays_is_named(run: NodeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ray could not write its error, the full disk is named; never for a job's own failure."""
    monkeypatch.setattr(explained_module, "free_at", lambda _folder: 4096)
    what_to_do = outcome_of(run, Kind.UNAVAILABLE).remedy
    assert what_to_do.startswith(
        f"the disk of {run.plan.facts.temp}, where Ray keeps its sessions, is "
    )
    assert outcome_of(run, Kind.JOB_FAILED).remedy == ""


def test_the_log_of_a_dead_actor_is_read(run: NodeRun) -> None:
    """The log of a worker process that ended without an error counts, and the record of Ray."""
    actor = "f1278bf7c4ae451727a2f3e803000000"
    run.folder.file("job.log").write_text(
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        f"\tclass_name: WorkerDict\n\tactor_id: {actor}\n\tpid: 78381\n\tip: 10.0.0.7\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
        "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file."
    )
    assert (
        "unknown to pod-agent: a worker process of Ray ended without an error"
        in outcome_of(run, Kind.JOB_FAILED).remedy
    )
    asked: list[str] = []

    class Link:
        async def dead_actors(self, ids: list[str], _limit: float) -> list[dict[str, str]]:
            asked.extend(ids)
            text = "Worker exit type: SYSTEM_ERROR\n*** SIGSEGV received at time=1 on cpu 1 ***"
            return [{"id": actor, "ip": "10.0.0.7", "text": text}]

    elsewhere = Elsewhere((), {"10.0.0.7": "pod7"}, cast("RayLink", Link()))
    ended, _ = anyio.run(explain_end, run, Outcome(Kind.JOB_FAILED, 1, "it failed"), elsewhere)
    assert asked == [actor]
    assert ended.remedy.startswith("a process crashed in compiled code (SIGSEGV) on pod7. ")


def test_an_address_in_the_log_is_a_nodes_name(run: NodeRun) -> None:
    """The driver's output identifies the process of an error by its node's address."""
    run.folder.file("job.log").write_text(
        "(WorkerDict pid=7, ip=10.0.0.7) torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n"
    )
    elsewhere = Elsewhere((), {"10.0.0.7": "pod7"})
    ended, _ = anyio.run(explain_end, run, Outcome(Kind.JOB_FAILED, 1, "it failed"), elsewhere)
    assert ended.remedy.startswith("a GPU ran out of memory on pod7. ")
    assert "It shows in job.log:1: 'torch.OutOfMemoryError: CUDA out of memory." in ended.remedy


def test_only_the_last_attempts_output_counts(run: NodeRun) -> None:
    """Output of earlier attempts explains nothing."""
    before = f"{OOM}\n"
    run.folder.file("job.log").write_text(f"{before}RuntimeError: shapes differ\n")
    run.output_begins = len(before)
    assert outcome_of(run, Kind.JOB_FAILED).remedy == (
        "Look at the first error, in job.log:2: 'RuntimeError: shapes differ':"
        " its cause is unknown to pod-agent"
    )


def test_only_what_follows_this_start_counts(run: NodeRun, tmp_path: Path) -> None:
    """Several starts of a run append to the same logs; an agent that goes on is no new start."""
    logs = [run.plan.possible_services[0].log, "job.log"]
    missing = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'nosuch'\n"
    for log in logs:
        run.folder.file(log).write_text(missing)
    run.close()
    again = made_run(run.plan, run.redactor, RunFolder(tmp_path, "run-1", "node-a"), 0.0, "run-1")
    assert again.folder.path == run.folder.path
    assert outcome_of(again, Kind.UNAVAILABLE).remedy == ""
    for log in logs:
        assert again.node.record.log_begins[log] == len(missing)
    with again.folder.file(logs[0]).open("a") as file:
        file.write("OSError: [Errno 122] Disk quota exceeded\n")
    assert f"It shows in {logs[0]}:3" in outcome_of(again, Kind.UNAVAILABLE).remedy
    next_record = own_record("node-a", "").continuing(again.node.record)
    assert next_record.log_begins == again.node.record.log_begins
    again.close()


def test_the_last_words_of_a_stopped_job_are_no_cause(run: NodeRun) -> None:
    """The agent ended torchrun, since a service was lost: a row counts, or the service's log."""
    stopped = (
        "W1127 18:00:00.137000 7410 torch/distributed/elastic/agent/server/api.py:753] "
        "Received 15 death signal, shutting down workers\n"
    )
    ended = Outcome(Kind.UNAVAILABLE, 69, "reward server is lost for good")
    job = run.folder.file("job.log")
    job.write_text(stopped)
    nothing = anyio.run(diagnose_end, run, ended)
    assert nothing is not None
    assert nothing.line == ""
    run.folder.file(run.plan.possible_services[0].log).write_text("KeyError: 'answer'\n")
    of_service = anyio.run(diagnose_end, run, ended)
    assert of_service is not None
    assert of_service.line == "KeyError: 'answer'"
    job.write_text("OSError: [Errno 122] Disk quota exceeded\n")
    known = anyio.run(diagnose_end, run, ended)
    assert known is not None
    assert known.key == "disk quota"


def test_what_was_named_live_explains_an_end_long_after_it(
    run: NodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line lies before what is read of the output; steps since then take it back."""
    monkeypatch.setattr("agent.run.diagnose._JOB_TAIL", 32 << 10)
    began = f"Traceback (most recent call last):\n{OOM}\nJob 'raysubmit_1' failed".split("\n")
    dump = [f"(E pid={number % 8}) block {number} of the cache" for number in range(4_000)]
    steps = [f"step:{number} - loss:0.3" for number in range(2)]
    watchdog = "[rank0]:[E1126 10:00:00.1 P:6] Watchdog caught collective operation timeout: W"
    failed = Outcome(Kind.JOB_FAILED, 1, "the job failed")
    cases = (
        (began, dump, "GPU memory", OOM),
        (began[:2], dump, "GPU memory", OOM),  # which was only seen
        ([began[0], "ValueError: 42"], dump, "", "ValueError: 42"),
        (began, [*dump, *steps], "", "Watchdog caught collective operation timeout: W"),
    )
    for before, between, key, line in cases:
        known = KnownLines(str)
        lines = [*before, *between, watchdog]
        known.scan(lines)
        run.folder.file("job.log").write_text("\n".join(lines))
        elsewhere = Elsewhere(first_at=known.first_at, named=known.named)
        found = anyio.run(diagnose_end, run, failed, elsewhere)
        assert found is not None
        assert (found.key, found.line) == (key, line)


def test_the_cause_for_the_next_attempt(run: NodeRun, tmp_path: Path) -> None:
    """Permanent or not, with its node; none where the loss of a node leads to such an error."""
    output = tmp_path / "driver.log"
    elsewhere = Elsewhere((), {"10.0.0.7": "pod7"})

    def cause(text: str) -> FailureCause | None:
        output.write_text(text)
        return anyio.run(find_cause, run, output, elsewhere)

    quota = "(WorkerDict pid=7, ip=10.0.0.7) OSError: [Errno 122] Disk quota exceeded\n"
    found = cause(quota)
    assert found is not None
    assert (found.key, found.node, found.is_permanent) == ("disk quota", "pod7", True)
    memory = cause(f"{OOM}\n")
    assert memory is not None
    assert not memory.is_permanent
    assert cause("RuntimeError: shapes differ\n") is None
    assert cause("The actor died because its node has died. Node Id: a3\n") is None
    assert (
        cause("NCCL WARN socketStartConnect: Connect to 10.0.0.7<1> failed : timed out\n") is None
    )


def test_packages_that_do_not_fit_are_the_first_suspect(run: NodeRun) -> None:
    """Only where no row names the cause."""
    packages = {"fastapi": "0.137.1", "prometheus-fastapi-instrumentator": "8.0.0"}
    ray = replace(run.plan.facts.ray, packages=packages)
    run.plan = replace(run.plan, facts=replace(run.plan.facts, ray=ray))
    run.folder.file("job.log").write_text("RuntimeError: shapes differ\n")
    what_to_do = outcome_of(run, Kind.JOB_FAILED).remedy
    assert "RuntimeError: shapes differ" in what_to_do
    assert (
        "first suspect: fastapi 0.137.1 and prometheus-fastapi-instrumentator 8.0.0 do"
        in what_to_do
    )
    run.folder.file("job.log").write_text("OSError: [Errno 122] Disk quota exceeded\n")
    assert "suspect" not in outcome_of(run, Kind.JOB_FAILED).remedy
