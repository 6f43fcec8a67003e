"""How this node's prepare steps and services run, each by itself, for the executor.

A step is skipped where its marker exists; else it runs to its end, its last line of output is
logged as it changes, and the marker is written. A service is started, probed until it is ready,
then probed at intervals, and stopped once it no longer answers. A service that runs elsewhere is
only probed.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING

import anyio

from agent.base import times
from agent.base.ends import exit_sentence
from agent.base.text import error_text, iso_time
from agent.decisions.shared import Step
from agent.job.compile_caches import SEAL, seal_of
from agent.job.front_protocol import KEY
from agent.job.services import CACHES, PROBE_KEY, RUN_JUDGES, HttpProbe
from agent.plan import environment
from agent.plan.plan import READ_AHEAD
from agent.processes.engine_router import EngineRouter
from agent.processes.probing import ReadinessProbe, until_dead
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.background import NO_THREAD, in_background, in_thread
from agent.record.log import say
from agent.run.diagnose import cause_of_program
from agent.run.front_link import front_key_of
from agent.settings.model import secret_texts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from pathlib import Path

    from agent.decisions.shared import Want
    from agent.job.services import Placeholders, PrepareStep, ServiceSpec
    from agent.processes.process import Child
    from agent.run.executor import OnProgress, Runner, UntilWanted
    from agent.run.node_run import NodeRun

_SERVICE_FIRST_PROBE = 10.0  # One probe while a service starts.
_SERVICE_GRACE = 1.0  # The grace of a service that no longer answers.
_STEP_GRACE = 1.0  # Of a prepare step that is stopped.
_STOPPED_FROM_OUTSIDE = {0, 128 + SIGTERM, 128 + SIGKILL}
"""Exit codes of which a service's output does not show the cause."""
_ROUTER_ASKED_AGAIN = 5.0  # A router that was started again lists a ready engine within this.
_STEP_PROGRESS = 2.0  # Between two reads of a step's progress.
_LONGEST_LINE = 200


async def _at_once(_name: str, _is_so: object) -> None:
    """Wait for nothing: all that runs is wanted as it is."""


class LocalWork:
    """Runs this node's prepare steps and services."""

    def __init__(
        self,
        run: NodeRun,
        place: Callable[[], Placeholders],
        until_wanted: UntilWanted = _at_once,
        nodes: Callable[[], Collection[str]] = tuple,
        judges: Callable[[str], str] | None = None,
    ) -> None:
        """`nodes` are the addresses of the run's nodes, as far as they are known here.

        `judges` fills in the URLs that a reward server asks, as they are now.
        """
        self._until_wanted = until_wanted
        self._run = run
        self._place = place
        self._nodes = nodes
        self._judges = judges or (lambda urls: self._place().fill(urls))
        self._were_ready: set[str] = set()  # services, since this agent began
        self._unfinished = {step.name for step in run.plan.steps} - {*run.finished_steps}
        self._reading: anyio.CancelScope | None = None  # while the model is read ahead

    def runner_of(self, name: str) -> Runner | None:
        """Return what runs the step or service with this name; None if the plan has neither."""
        plan = self._run.plan
        if any(step.name == name for step in plan.steps):
            return self.prepare
        if any(spec.name == name for spec in plan.possible_services):
            return self.serve
        return None

    async def prepare(self, name: str, _want: Want, progress: OnProgress) -> str:
        """Run a step to its end; return why it failed, or ''."""
        step = next(step for step in self._run.plan.steps if step.name == name)
        failure = await self._run_step(step, progress)
        if not failure:
            self._unfinished.discard(name)
        if name == CACHES:
            await self._run.caches.note_seeded()
        return failure

    async def read_model(self) -> None:
        """Read the model into the page cache, once the steps are over and Ray has started."""
        with anyio.CancelScope() as self._reading:
            await self._run.best_effort("reading the model ahead", self._read_model)

    def stop_reading(self) -> None:
        """Read no more of the model."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read_model(self) -> None:
        run = self._run
        planned = next((one for one in run.plan.processes if one.name == READ_AHEAD), None)
        if planned is None or run.surviving is not None:  # a killed agent's node has read it
            return

        async def may_begin() -> bool | NotYet:
            is_early = run.now() < times.MODEL_READ_AFTER
            return NotYet() if is_early or self._unfinished else True

        await until(may_begin, None, longest=0.5)
        inherited = environment.for_children(run.plan.environ, run.plan.settings)
        env = environment.without_cluster_auth(inherited, run.plan.settings)
        argv = [*planned.argv]
        async with run.running(planned.name, argv, env, planned.log, grace=0.0) as child:
            code = await child.wait()
        what = child.tail(1) if code == 0 else f"reading ahead: {child.end_sentence(code)}"
        say(f"{run.plan.settings.model}: {what}", "info" if code == 0 else "debug")

    async def _run_step(self, step: PrepareStep, progress: OnProgress) -> str:
        """Run a step unless its marker exists; return '' or why it failed."""
        run = self._run
        name = step.name
        if name in run.finished_steps:
            return ""

        # Was it done in an earlier run, whose marker is on a disk that keeps it?
        place = self._place()
        marker = None if step.once is None else run.effects.disk.path(place.fill(step.once))
        if marker is not None:
            try:
                is_done = await _is_there(marker, name)
            except TimedOutError as error:
                return str(error)
            if is_done:
                say(f"{name}: skipped, {marker} is there")
                return ""

        child, code = await self._run_to_end(step, place)
        if code != 0:
            progress(output=child.tail())
            return exit_sentence(code)

        # The step is done, even if its marker cannot be written: it then runs again next time.
        if marker is not None:
            fault = await in_thread(partial(_mark, marker, name), times.IDLE_DISK)
            if fault != "":
                why = fault or "it does not answer"
                say(f"{name}: done, but {marker} cannot be written ({why})", "warning")
        run.node.update(done=(*run.node.record.done, name))
        return ""

    async def _run_to_end(self, step: PrepareStep, place: Placeholders) -> tuple[Child, int]:
        """Run a step's command to its end; stop it if this is canceled."""
        run = self._run
        name = step.name
        env = self._step_environment(name, place)
        say(f"{name}: running (output in {step.log})")
        # A step may leave a server running on purpose.
        argv = step.argv(place)
        running = run.running(name, argv, env, step.log, grace=_STEP_GRACE, keep_group=True)
        try:
            async with running as child, anyio.create_task_group() as tasks:
                tasks.start_soon(self._log_progress, name, child)
                code = await child.wait()
                tasks.cancel_scope.cancel()
        finally:
            run.stats.progress.pop(name, None)
        return child, code

    def _step_environment(self, name: str, place: Placeholders) -> dict[str, str]:
        """Return a step's environment.

        A worker's step may run before the head is found: its own address is then unknown.
        """
        plan = self._run.plan
        if plan.topology.is_head:
            env = plan.environment(place.node_ip, place.head_ip, self._run.rank)
        else:
            env = environment.for_children(plan.environ, plan.settings)
        env = environment.without_cluster_auth(env, plan.settings, keeps_wandb=True)
        if name == CACHES:
            env[SEAL] = seal_of(plan.secret())
        return env

    async def _log_progress(self, name: str, child: Child) -> None:
        """Log the last line of a step's output as it changes."""
        before = child.tail(1, _LONGEST_LINE)
        pause = _STEP_PROGRESS

        async def read_line() -> NotYet | None:
            return NotYet(child.tail(1, _LONGEST_LINE))

        def log(line: str) -> None:
            if line and line != before:
                self._run.stats.progress[name] = line
                say(f"{name}: {line}")

        await until(read_line, None, step=pause, longest=pause, on_evidence=log)

    async def serve(self, name: str, want: Want, progress: OnProgress) -> str:
        """Run a service until it ends; return why it did."""
        plan = self._run.plan
        spec = next(spec for spec in plan.possible_services if spec.name == name)
        place = spec.place(self._place())

        # Does it run elsewhere? Then there is nothing to start.
        if spec.argv is None:
            return await self._probe(spec, place, progress, lambda: 0.0)

        full = plan.environment(place.node_ip, place.head_ip, self._run.rank)
        env = environment.without_cluster_auth(full, plan.settings)
        env |= plan.gpu_split.service_environment(name, self._run.rank)
        env |= spec.environment(place)
        env |= secret_texts(plan.settings, spec.secrets)
        if spec.is_front or spec.judges:
            env[KEY] = await front_key_of(self._run)
        argv = spec.command(place)
        grace = plan.budget.services
        async with self._run.running(
            *(name, argv, env, spec.log), grace=grace, generation=want.generation
        ) as child:
            return await self._serve(child, spec, place, progress)

    async def _serve(
        self, child: Child, spec: ServiceSpec, place: Placeholders, progress: OnProgress
    ) -> str:
        """Probe a service until it ends by itself, or stop it once it no longer answers.

        A router sends requests to it only while it is ready. It gets no news of a service that is
        stopped from outside: the run ends, or the head, where the router may be, is out of reach.
        """
        router = _router_of(spec, place)
        listing = anyio.CancelScope()
        silence = ""

        async with anyio.create_task_group() as tasks:

            async def until_current() -> None:
                await self._until_wanted(spec.name, lambda want: not want.is_stale)

            async def enter(router: EngineRouter) -> None:
                with listing:
                    await stay_listed(router, spec.name, until_current)

            def enter_router() -> None:
                if router is not None:
                    tasks.start_soon(enter, router)

            async def probe_until_dead() -> None:
                nonlocal silence
                cpu = partial(self._run.effects.processes.cpu_of, child.pid)
                silence = await self._probe(spec, place, progress, cpu, enter_router)
                listing.cancel()
                if router is not None:
                    await _leave(router, spec.name)
                await child.stop(_SERVICE_GRACE)

            tasks.start_soon(probe_until_dead)
            code = await child.wait()
            tasks.cancel_scope.cancel()
        if router is not None and not silence:
            await _leave(router, spec.name)
        if silence:
            return silence
        progress(output=child.tail())
        sentence = exit_sentence(code)
        if code in _STOPPED_FROM_OUTSIDE:
            return sentence
        cause = await cause_of_program(spec.name, child.last_output)
        return f"{sentence} ({cause})" if cause else sentence

    async def _probe(
        self,
        spec: ServiceSpec,
        place: Placeholders,
        progress: OnProgress,
        cpu: Callable[[], float],
        on_ready: Callable[[], None] = lambda: None,
    ) -> str:
        """Say when a service is ready; return why it is dead once it stops answering."""
        log = self._run.folder.file(spec.log)
        token = self._run.plan.secret("AGENT_REWARD_TOKEN")
        port_answers = self._run.effects.network.port_answers
        nodes = tuple if spec.argv is None else self._nodes  # nobody else's server gets them
        key = await front_key_of(self._run) if spec.judges else ""
        headers = partial(self._headers_of, spec, key)
        probe = ReadinessProbe(spec.ready, place, log, token, port_answers, nodes, headers)

        async def probe_once(limit: float) -> str:
            began = anyio.current_time()
            evidence = await probe.ask(limit)

            # Is only the judge late, which has graded before? Restarts would bring no grade.
            if probe.awaits_judge and spec.name in self._were_ready:
                return ""
            if not evidence:
                self._run.stats.record_latency(spec.name, anyio.current_time() - began)
            if not evidence and probe.judge_cost is not None:
                self._run.stats.record_judge(probe.judge_cost)
            return evidence

        async def check() -> bool | NotYet:
            evidence = await probe_once(_SERVICE_FIRST_PROBE)
            return NotYet(evidence) if evidence else True

        await until(check, None, longest=0.5, on_evidence=partial(progress, Step.PENDING))
        self._were_ready.add(spec.name)
        progress(Step.READY, "")
        on_ready()

        # Is it probed again, once it is ready?
        if spec.asked_again is None:
            await anyio.sleep_forever()
            return ""
        return await until_dead(probe_once, spec.asked_again, cpu)

    def _headers_of(self, spec: ServiceSpec, key: str) -> Mapping[str, str]:
        """Return the headers that name a reward server's judges, once their nodes are known."""
        urls = self._judges(spec.judges) if spec.judges else "{"
        return {} if "{" in urls else {RUN_JUDGES: urls, PROBE_KEY: key}


# --- the router of an engine ----------------------------------------------------------------------


def _router_of(spec: ServiceSpec, place: Placeholders) -> EngineRouter | None:
    """Return the router that passes requests on to a service, if its table names one."""
    if not spec.router or not isinstance(spec.ready, HttpProbe):
        return None
    return EngineRouter(spec.router, spec.ready, place)


async def stay_listed(
    router: EngineRouter, name: str, until_current: Callable[[], Awaitable[None]]
) -> None:
    """Have the router list an engine while it is ready: a router that is started again may not.

    `until_current` returns once the engine has the wanted weights: none is added with older ones.
    """
    was_added: bool | None = None  # None while it is not known to be in the list

    async def add() -> NotYet:
        nonlocal was_added
        await until_current()
        is_new = await router.add()
        if isinstance(is_new, str):
            was_added = None
            return NotYet(is_new)
        # A router that drops it again and again would have one line for each time.
        if was_added is None or (is_new and not was_added):
            say(f"{name}: in the list of its router {router.url}")
        was_added = is_new
        return NotYet()

    def log(why: str) -> None:
        if why:
            say(f"{name}: not in the list of its router {router.url}: {why}", "warning")

    await until(add, None, longest=_ROUTER_ASKED_AGAIN, on_evidence=log)


async def _leave(router: EngineRouter, name: str) -> None:
    """Have the router send an engine nothing more, before it is stopped or started again."""
    why = await router.remove()
    if why:
        say(f"{name}: still in the list of its router {router.url}: {why}", "warning")
    else:
        say(f"{name}: taken out of the list of its router {router.url}")


# --- markers of prepare steps ---------------------------------------------------------------------


async def _is_there(marker: Path, name: str) -> bool:
    """Return whether a marker exists; raise TimedOutError if its disk does not answer in time."""
    pending: asyncio.Future[bool | str] | None = None

    async def look() -> bool | NotYet:
        nonlocal pending
        pending = pending or in_background(partial(_look_for, marker))
        if pending is None:
            return NotYet(f"{marker} cannot be read: {NO_THREAD}")
        await asyncio.wait([pending], timeout=times.STALLED_DISK)
        if not pending.done():  # the next look waits for the same answer
            return NotYet(f"{marker} does not answer")
        answer = pending.result()
        pending = None
        if isinstance(answer, str):
            return NotYet(f"{marker} cannot be read: {answer}")
        return answer

    def log(evidence: str) -> None:
        say(f"{name}: waiting for its marker, {evidence}", "warning")

    return await until(look, times.IDLE_DISK, on_evidence=log)


def _look_for(marker: Path) -> bool | str:
    """Return whether a marker exists, or its disk's error."""
    try:
        return marker.exists()
    except OSError as error:
        return error_text(error)


def _mark(marker: Path, name: str) -> str:
    """Write the marker, which only has to exist; return '' or the error.

    Without it the step runs again next time.
    """
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text(f"{name}: done {iso_time(time.time())}\n", encoding="utf-8")
    except OSError as error:
        return error_text(error)
    return ""
