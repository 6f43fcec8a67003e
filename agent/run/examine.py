"""Examine a job that makes no progress, on all nodes at once.

Each node reads the stacks of the driver, of all Ray workers or ranks, and of what they started,
requests dumps of torch's flight recorder, and looks at its GPUs, its kernel's messages and its
engines' logs (`NodeExaminer`). The head collects that, asks the services, searches the job's output
as at an end, groups the processes, and returns one sentence that names node, process and function
(`JobExaminer`). The rest is in a file.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from msgspec.structs import replace

from agent.base import times
from agent.base.value import LONGEST_TAIL
from agent.bridge.link import RayLink, Unplaced
from agent.diagnosis import node_findings
from agent.diagnosis.flight_recorder import not_entered
from agent.diagnosis.node_findings import NodeFindings
from agent.diagnosis.stacks import (
    busy_place,
    examination,
    group,
    sentence,
)
from agent.job.services import ON_HEAD, LogPattern
from agent.port.protocol import STACKS
from agent.processes import driver
from agent.processes.hang_evidence import engine_logs, gpu_notes, kernel_notes
from agent.processes.job_stacks import STACKS_FOLDER, StackTools, find_py_spy, read_stacks
from agent.processes.probing import ReadinessProbe
from agent.processes.recorder_dumps import read_recorders
from agent.processes.waiting import Failure
from agent.record.background import in_thread, result_in_thread
from agent.record.log import say
from agent.record.run_folder import stacks_file
from agent.run.diagnose import cause_so_far, ray_log_folder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agent.diagnosis.stacks import Examination
    from agent.job.services import Placeholders, ServiceSpec
    from agent.processes.driver import JobProcess
    from agent.run.diagnose import Elsewhere
    from agent.run.node_run import NodeRun


FOR_TOOLS = ("PATH", "HOME", "LD_LIBRARY_PATH", "LANG", "TMPDIR")


class NodeExaminer:
    """Examines the job's processes on this node."""

    def __init__(self, run: NodeRun) -> None:
        self._run = run
        environ = run.plan.environ
        self._env = {name: environ[name] for name in FOR_TOOLS if name in environ}

    async def examine(self, submission_id: str | None = None) -> str:
        """Return what was found here, as JSON of limited size without secrets; or why nothing."""
        what = "an examination of the job here"
        text = await self._run.best_effort(what, self._examine, submission_id)
        return f"it cannot be examined: {text.reason}" if isinstance(text, Failure) else text

    async def _examine(self, submission_id: str | None) -> str:
        run = self._run
        plan = run.plan
        node = plan.topology.node_name
        limit = times.NODE_EXAMINED
        search = partial(run.effects.processes.job_processes, submission_id)
        processes = await result_in_thread(search, limit)
        serving = await in_thread(self._services, times.STALLED_DISK) or []
        py_spy = await in_thread(self._py_spy, times.STALLED_DISK)
        results: dict[str, Any] = {}

        async def add(name: str, read: Callable[[], Awaitable[object]]) -> None:
            results[name] = await read()

        # All at once, within the node's limit; what is late is left out.
        log = partial(run.folder.file, "py-spy.log")
        tools = StackTools(py_spy, self._env, log, str(run.folder.file(STACKS_FOLDER)))
        local = partial(read_stacks, node, processes, tools, limit)
        services = partial(read_stacks, node, serving, tools, limit)
        recorders = partial(read_recorders, processes, run.folder.path)
        with anyio.move_on_after(limit + 1.0):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(add, "stacks", local)
                tasks.start_soon(add, "services", services)
                tasks.start_soon(add, "recorders", recorders)
                tasks.start_soon(add, "machine", self._machine_notes)
                tasks.start_soon(add, "logs", self._engine_logs)

        # As text for the head.
        notes: list[str] = []
        for service in results.get("services", ()):
            place = busy_place(service)
            if place is not None:
                notes.append(f"{service.role} is in `{place.function}` ({place.where})")
        progress = ()
        if "recorders" in results:
            progress = results["recorders"].progress
            notes += results["recorders"].notes
        notes += results.get("machine", ())
        stacks = results.get("stacks", ())
        if stacks:  # for whoever reads this node's log
            say(f"the job here: {sentence(group(stacks))}")
        findings = NodeFindings(stacks, progress, tuple(notes), results.get("logs") or "")
        encode = partial(node_findings.encode, findings, LONGEST_TAIL, run.redactor.clean)
        return await result_in_thread(encode)  # many frames take a while

    def _py_spy(self) -> str | None:
        plan = self._run.plan
        return find_py_spy([plan.facts.job_python, sys.executable], plan.environ.get("PATH"))

    def _services(self) -> list[JobProcess]:
        """Return the processes of the services that run here."""
        plan = self._run.plan
        names = {spec.name for spec in (*plan.all_services, *plan.possible_services)}
        processes = []
        for started in self._run.node.record.started:
            if started.name in names:
                processes += driver.service_processes(started.name, started.pid)
        return processes

    async def _machine_notes(self) -> list[str]:
        """Return sentences about GPUs and the kernel."""
        notes = gpu_notes(self._run.figures.newest)
        read = partial(kernel_notes, self._run.effects.machine.kernel_log)
        return notes + (await in_thread(read, times.STALLED_DISK) or [])

    async def _engine_logs(self) -> str:
        read = partial(engine_logs, ray_log_folder(self._run))
        return await in_thread(read, times.STALLED_DISK) or ""


_MOST_EVIDENCE = 12
_MOST_AWAITED = 2  # in the sentence


class JobExaminer:
    """Examines the job on all nodes; `ask_all` returns each node's text by the node's name."""

    def __init__(
        self,
        run: NodeRun,
        link: RayLink | None,
        place: Callable[[], Placeholders],
        ask_all: Callable[[str, float], Awaitable[Mapping[str, str]]],
        elsewhere: Callable[[], Elsewhere],
    ) -> None:
        self._run = run
        self._link = link
        self._place = place
        self._ask_all = ask_all
        self._elsewhere = elsewhere

    async def examine(self, attempt: int, since: str) -> Examination:
        """Return what was found; `since` is the time of day of the job's last progress."""
        texts: dict[str, str] = {}
        services: list[str] = []
        unplaced = Unplaced()
        shown: list[str] = []

        async def search_output() -> None:
            cause = await cause_so_far(self._run, self._elsewhere())
            if cause:
                shown.append(f"the job's output so far: {cause}")

        async def ask_nodes() -> None:
            texts.update(await self._ask_all(STACKS, times.STALL_STACKS))

        async def ask_services() -> None:
            services.extend(await self._service_notes())

        async def ask_ray() -> None:
            nonlocal unplaced
            if self._link is not None:
                unplaced = await self._link.unplaced(times.STALL_TASKS)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_nodes)
            tasks.start_soon(ask_services)
            tasks.start_soon(ask_ray)
            tasks.start_soon(search_output)

        # What do all of them show together? Many nodes take a while.
        awaited = [*unplaced.groups, *services]
        read = partial(self._combine, since, texts, awaited, [*unplaced.others, *shown])
        examined, evidence, findings = await result_in_thread(read)
        await self._write(attempt, examined, evidence, findings)
        return examined

    def _combine(
        self,
        since: str,
        texts: Mapping[str, str],
        awaited: Sequence[str],
        others: Sequence[str],
    ) -> tuple[Examination, list[str], dict[str, NodeFindings]]:
        """Return the examination with its first evidence, all evidence, and each node's findings.

        What all wait for is named before who waits: a placement group that no node can hold, a
        service that does not answer. Of the notes those about the suspects' nodes come first.
        """
        findings = {node: node_findings.decode(text, node) for node, text in texts.items()}
        stacks = [stack for of_node in findings.values() for stack in of_node.stacks]
        progress = [group for of_node in findings.values() for group in of_node.collectives]
        examined = examination(self._run.now(), stacks, since)
        clean = self._run.redactor.clean
        named = [*awaited[:_MOST_AWAITED], examined.sentence]
        examined = replace(examined, sentence=clean("; ".join(named)))

        suspected = {suspect.node for suspect in examined.suspects}
        nodes = sorted(findings, key=lambda node: node not in suspected)
        notes = [f"{node}: {note}" for node in nodes for note in findings[node].notes]
        others = [*awaited[_MOST_AWAITED:], *others]
        everything = [clean(text) for text in (*not_entered(progress), *others, *notes)]
        first = everything[:_MOST_EVIDENCE]
        if len(everything) > len(first):
            first.append(f"{len(everything) - len(first)} more findings are in the file")
        return replace(examined, evidence=tuple(first)), everything, findings

    async def _write(
        self,
        attempt: int,
        examined: Examination,
        evidence: Sequence[str],
        findings: Mapping[str, NodeFindings],
    ) -> None:
        """Write all of it to a file of the run folder."""
        parts = [examined.sentence, *evidence, ""]
        for node, of_node in findings.items():
            parts.append(f"--- {node}\n{node_findings.as_text(of_node)}\n")
        text = self._run.redactor.clean("\n".join(parts))
        path = self._run.folder.file(stacks_file(attempt))
        write = partial(self._run.effects.disk.write, path, text, durable=False)
        await in_thread(write, times.STALLED_DISK)

    async def _service_notes(self) -> list[str]:
        """Return which services do not answer a request as before the job."""
        notes: list[str] = []

        async def ask(spec: ServiceSpec) -> None:
            log = self._run.folder.file(spec.log)
            token = self._run.plan.secret("AGENT_REWARD_TOKEN")
            probe = ReadinessProbe(spec.ready, self._place(), log, token)
            evidence = await self._run.best_effort(
                f"a probe of {spec.name}", probe.ask, times.SERVICE_EXAMINED
            )
            if isinstance(evidence, str) and evidence:
                notes.append(f"service {spec.name} does not answer: {evidence}")

        async with anyio.create_task_group() as tasks:
            for spec in self._run.plan.all_services:
                if not isinstance(spec.ready, LogPattern) and spec.where == ON_HEAD:
                    tasks.start_soon(ask, spec)
        return notes
