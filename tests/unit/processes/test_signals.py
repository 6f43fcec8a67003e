"""Signals: passed on while there is a handler, ignored after that, and never inherited."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.decisions.attempts import Attempt
from agent.decisions.shared import Outage
from agent.processes.parent import NOTICES, STOPS
from agent.record.run_folder import RunFolder
from agent.record.run_record import ChosenRun
from agent.run import node_run as node_run_module
from agent.run.run_store import RunStore
from agent.settings.redact import redactor_for
from support.node_runs import made_run
from support.worlds import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.processes

REPO = Path(__file__).parents[3]

LIVE = """
import os, signal, sys, anyio
from agent.processes import signals
from agent.processes.parent import install_handlers
from agent.processes.signals import exit_now

def live(*numbers, until=None):
    taken = []

    async def watch():
        async with anyio.create_task_group() as tasks:
            notify = lambda signum: taken.append(-signum)
            tasks.start_soon(signals.watch_signals, taken.append, notify)
            await anyio.wait_all_tasks_blocked()
            for number in numbers:
                os.kill(os.getpid(), number)
            with anyio.fail_after(5):
                while not (until in taken if until else taken):
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()

    anyio.run(watch)
    return sorted(map(int, taken))

"""
"""`live` sends signals to its own process, and returns stops, and notices below 0."""


LATE = f"{LIVE}print(*live({{number}}), flush=True); os.kill(os.getpid(), {{number}}); exit_now(7)"


@pytest.mark.parametrize(
    ("number", "passed_on"),
    [
        (signal.SIGTERM, 15),
        (signal.SIGINT, 2),
        (signal.SIGHUP, 1),
        (signal.SIGQUIT, 3),
        (signal.SIGXCPU, 24),
        (signal.SIGALRM, 14),
        (signal.SIGRTMIN + 3, int(signal.SIGRTMIN) + 3),
        (signal.SIGUSR1, -10),
        (signal.SIGUSR2, -12),
    ],
)
def test_a_late_signal_does_not_change_the_code(number: int, passed_on: int) -> None:
    """The first one is taken, the one after the end is not, and the code stays."""
    assert output_of(LATE.replace("{number}", str(int(number)))) == (7, f"{passed_on}\n")


def output_of(scenario: str, before: Callable[[], None] | None = None) -> tuple[int, str]:
    """Run a coroutine in a separate Python; return its code and its output."""
    done = subprocess.run(
        [sys.executable, "-c", scenario],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=before,  # one thread here; what is inherited is what is tried
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def test_every_terminating_signal_is_handled() -> None:
    """By default a signal that is neither a request nor a notice is harmless, or a fault."""
    left = signal.valid_signals() - STOPS.keys() - set(NOTICES)
    assert {signal.Signals(number).name for number in left} == {
        *("SIGKILL", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGPIPE", "SIGXFSZ"),
        *("SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH"),
        *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGSYS", "SIGTRAP"),
    }
    assert {STOPS[number] for number in STOPS.keys() - {signal.SIGINT}} == {signal.SIGTERM}
    assert STOPS[signal.SIGINT] == signal.SIGINT


def test_a_signal_during_imports_is_handled_later() -> None:
    """A notice of the first moments is noted and reaches the program, once."""
    twice = "install_handlers(); [os.kill(os.getpid(), 10) for _ in range(2)]; print(*live())"
    assert output_of(LIVE + twice) == (0, "-10\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_request_while_we_import_ends_us_at_once(number: int) -> None:
    """Our parent then says by which; a KeyboardInterrupt would be a 130 without a word."""
    struck = f"install_handlers(); os.kill(os.getpid(), {int(number)}); print('goes on')"
    assert output_of(LIVE + struck) == (-number, "")


CHILD = (
    "import signal; "
    "print([n for n in range(1, 32) if signal.getsignal(n) is signal.SIG_IGN "
    "and n not in (signal.SIGPIPE, signal.SIGXFSZ)], "
    "list(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
)
PARENT = f"""
import subprocess, sys
from agent.processes.parent import set_handler, ignore_signals, install_handlers
for step in (install_handlers, lambda: set_handler(lambda _: None), ignore_signals):
    step()
    subprocess.run([sys.executable, "-I", "-c", {CHILD!r}], check=True)
"""


def test_children_start_with_defaults() -> None:
    """Whatever was ignored or blocked when we were started, nothing of it is inherited."""

    def spoil() -> None:
        for number in (1, 2, 3, 10, 12, 14, 15, 17):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {10, 12, 15})

    assert output_of(PARENT, spoil) == (0, "[] []\n" * 3)


def test_what_nohup_ignores_stays_ignored() -> None:
    """A background job continues on Ctrl-C and hangup; SIGUSR1 and SIGUSR2 still arrive."""

    def ignore() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)

    scenario = f"{LIVE}print(*live(1, 2, 2, 10, 15, until=15), os.system('exit 3') >> 8)"
    assert output_of(scenario, ignore) == (0, "-10 15 3\n")


@pytest.mark.parametrize("words", [[], ["run"], ["run", "--", "true"]])
def test_a_notice_in_the_first_moments_kills_no_run(words: list[str]) -> None:
    """SIGUSR1 all the time, while it imports as at its end: it exits by its settings."""
    environ = {"PATH": os.defpath, "EXPECTED_WORKERS": "many"}
    argv = [sys.executable, "-m", "agent", *words]
    with subprocess.Popen(argv, env=environ, stderr=subprocess.PIPE, text=True, cwd=REPO) as agent:
        until = time.monotonic() + 60
        while not catches(agent.pid, signal.SIGUSR1):
            assert agent.poll() is None
            assert time.monotonic() < until
            time.sleep(0.001)
        while agent.poll() is None:
            agent.send_signal(signal.SIGUSR1)
            time.sleep(0.0005)
        _, stderr = agent.communicate(timeout=60)
    assert agent.returncode == 78, stderr


def catches(pid: int, number: int) -> bool:
    """Say whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


TWICE = """
import os, signal, anyio
from agent.processes import signals

async def live():
    async with anyio.create_task_group() as tasks:
        asked = anyio.Event()
        record = lambda: print("recorded", flush=True)
        await tasks.start(signals.watch_signals, lambda _: asked.set(), lambda _: None, record)
        os.kill(os.getpid(), signal.SIGINT)
        await asked.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep_forever()

os.dup2(1, 2)
anyio.run(live)
"""


def test_a_second_sigint_records_the_end_first() -> None:
    """outcome.json and the last line are written before the exit with 130."""
    code, out = output_of(TWICE)
    assert code == 130
    assert "recorded" in out


def test_the_end_by_a_second_sigint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its kind, code, phase and sentence, with the attempts, outages and cost so far."""
    plan = plan_of({"AGENT_LOG_DIR": str(tmp_path)}, command=["true"])
    folder = RunFolder(tmp_path, "run-1", "node-a")
    logged: list[str] = []
    monkeypatch.setattr(node_run_module, "say", lambda sentence, *_, **__: logged.append(sentence))
    store = RunStore(tmp_path, "f" * 16, ChosenRun("run-1", None))
    node_run = made_run(plan, redactor_for({}, plan.settings, ()), folder, store=store)
    attempt = Attempt("run-1-1", submitted=2.0, start="2026-11-26T10:00:00Z")
    outages = (Outage("retriever", "pod1", 1.0),)
    store.put(replace(store.durable, attempt=attempt, outages=outages), 3.0)
    store.measure_use(3.0, 12.345, "AGENT_PRICE_PER_HOUR")
    node_run.set_phase("running")
    node_run.record_kill()
    store.close()
    node_run.close()
    data = json.loads((folder.path / "outcome.json").read_text())
    assert (data["kind"], data["exit_code"], data["phase"]) == ("stopped", 130, "running")
    assert data["reason"] == "asked to stop by a second SIGINT"
    assert [one["number"] for one in data["attempts"]] == [1]
    assert [one["service"] for one in data["outages"]] == ["retriever"]
    assert (data["cost"], data["price_source"]) == (12.35, "AGENT_PRICE_PER_HOUR")
    assert logged == ["stopped: asked to stop by a second SIGINT (exit code 130)"]
