"""Sentences of the docs that the program must keep, each beside the code that it is about."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agent.base import ends, times
from agent.base.ends import Outcome
from agent.base.errors import SettingsError
from agent.decisions.few_steps import warn_of_few_steps
from agent.diagnosis.advice import advice_of, change_by
from agent.diagnosis.forecast import HOST_MEMORY, sentence
from agent.diagnosis.slow_nodes import (
    LEAST_NODES,
    LEAST_READINGS,
    LEAST_USE,
    MEASURES,
    MOST_SLOW,
    SlowNode,
)
from agent.diagnosis.training_rules import RULES
from agent.job.progress import Progress
from agent.node.figures import Forecast, GpuFigures
from agent.node.read import command_fault
from agent.port.access import host_names, refusal_of
from agent.port.status_model import WarningStatus
from agent.processes.parent import NOTICES, STOPS
from agent.run.diagnose import RAY_LOGS
from agent.run.gpu_memory import describe
from agent.settings import load
from agent.settings.model import SECRET_FILE_VARIABLES
from support.sources import DOCS, ROOT, name_of
from support.worlds import POD, SECRET, plan_of

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = ROOT / "docs"


def page(name: str) -> str:
    """Return a page without its line breaks."""
    return " ".join((DOCUMENTS / name).read_text(encoding="utf-8").split())


def test_signals_that_are_no_request_to_stop_are_named() -> None:
    """The exit codes' page names the signals of a crash, which request no stop."""
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
    others = {signal.SIGSYS, signal.SIGTRAP}
    assert not (faults | others) & {*STOPS, *NOTICES}
    assert "(or any other signal that would kill)" not in page("reference/exit-codes.md")
    for one in faults | others:
        assert one.name in page("reference/exit-codes.md")


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"DEBUG_RAY": "1", "HTTPS_PROXY": "http://proxy:1"},
        {"DEBUG_RAY": "post-mortem", "RAY_AUTH_TOKEN": f"{SECRET}{SECRET}"},
    ],
    ids=["plain", "proxy and debugger", "token"],
)
def test_every_exported_variable_is_listed(environ: dict[str, str]) -> None:
    """The page names each variable that the agent adds to Ray's environment or the job's."""
    text = page("reference/env.md").partition("## What Ray and the job get")[2]
    added = plan_of(environ, POD).environment("10.1.0.10", "10.1.0.10").keys() - environ.keys()
    missing = [
        name
        for name in {*added, "AGENT_ATTEMPT", "WANDB_RUN_GROUP"}
        if f"`{name}`" not in text and not ("RAY_DEBUG" in name and "`RAY_DEBUG…`" in text)
    ]
    assert missing == []


def test_every_variable_for_a_secrets_file_is_listed() -> None:
    """The page names each `…_FILE`."""
    missing = [name for name in SECRET_FILE_VARIABLES if name not in page("reference/env.md")]
    assert missing == []


def test_the_answer_to_a_foreign_name_is_described() -> None:
    """Without a token a Host header that is no name of the node is answered 421."""
    refusal = refusal_of("GET", "/status", {"Host": "evil"}, host_names(["a"]), guarded=False)
    assert refusal is not None
    assert refusal[0] == 421
    assert refusal_of("GET", "/status", {"Host": "evil"}, host_names([]), guarded=True) is None
    for name in ("reference/http.md", "security.md"):
        assert "`Host` header" in page(name), name
        assert "421" in page(name), name


def test_an_early_end_of_a_service_that_is_not_essential_is_described() -> None:
    """Only an essential service ends the run with 69 before the job."""
    assert "An essential service that ends before that ends the run with 69" in page("services.md")
    assert "with `essential = false` it is given up with a warning" in page("services.md")


def test_a_program_that_does_not_exist_is_described_as_it_is_reported(tmp_path: Path) -> None:
    """The page quotes the finding itself."""
    on_path = command_fault(("train",), str(tmp_path))
    by_path = command_fault(("/no/train",), str(tmp_path)).removeprefix("'/no/train' ")
    assert f"`job: the program after --: {on_path}`" in page("troubleshooting.md")
    assert f"(with a path: `{by_path}`)" in page("troubleshooting.md")


def test_messages_of_a_running_job_are_quoted_as_they_are_made() -> None:
    """The troubleshooting page quotes each sentence that people search for."""
    slow = SlowNode("10.0.0.4", "use", 14.0, 91.0).sentence()
    full = Forecast(HOST_MEMORY, 9_600, 3_100_000_000, 1_200)
    held = GpuFigures(0, memory_used=71_680, memory_total=80_000)
    success = ends.JOB_SUCCEEDED.outcome(before="")
    few = warn_of_few_steps(success, Progress(1, 0.0, last=3, of=400), 400)
    kind = ("entropy", "sudden", "fell")
    entropy = next(rule for rule in RULES if (rule.meaning, rule.shape, rule.turn) == kind)
    points = [(step, 0.8 if step < 56 else 0.1) for step in range(1, 61)]
    change = change_by(entropy, {"entropy": points})
    assert change is not None
    advice = advice_of(entropy, change)
    again = ends.SAME_CAUSE.outcome(where="at step 12", cause="…")
    quoted = (
        f"slow node pod170: {slow}",
        sentence(full, "pod2", "since about step 40"),
        f"waiting for GPU memory: {describe([held], {0: ['python3, pid 4711']})}",
        few.headline,
        f"{WarningStatus.of_advice(advice).check}: {advice.what}",
        again.headline,
    )
    text = page("troubleshooting.md")
    assert [one for one in quoted if f"`{one}`" not in text] == []
    assert f"the next one waits for it, at most {times.GPUS_FREED:g} s" in text


def test_every_field_of_an_outcome_is_described() -> None:
    """The page of the files names all that `outcome.json` has of an end."""
    text = page("reference/files.md")
    assert [name for name in Outcome.__struct_fields__ if f"`{name}`" not in text] == []


def test_every_file_of_a_run_is_described() -> None:
    """Each log and record that is named for the run folder; the others are Ray's, or a bundle's."""
    of_others = {*RAY_LOGS, "findings.json", "status.json"}
    sources = (
        path for name in ("plan", "record", "run") for path in ROOT.glob(f"agent/{name}/*.py")
    )
    named = re.compile(r'(?<!f)"([\w.-]+\.(?:log|jsonl?|html|key))"')
    names = {name for path in sources for name in named.findall(path.read_text(encoding="utf-8"))}
    assert {"agent.log", "front.key", "node.json", "report.html", "series.jsonl"} <= names
    text = page("reference/files.md")
    assert [name for name in sorted(names - of_others) if f"{name}`" not in text] == []


def test_the_rule_of_slow_nodes_is_described() -> None:
    """The page of the port has the limits of each figure, and of all nodes."""
    text = page("reference/http.md")
    for percent, _, _ in MEASURES.values():
        assert f"| {percent} %" in text
    assert (LEAST_NODES, LEAST_READINGS, MOST_SLOW) == (3, 10, 4)
    assert "A node counts from its tenth reading on" in text
    assert "At least three nodes must count" in text
    assert f"median utilization is below {LEAST_USE} %" in text
    assert "they are at most a quarter of all nodes" in text


def test_the_start_files_are_written_by_any_python() -> None:
    """`./scripts/examples` runs in the project's Python, wherever it is called from."""
    first = (ROOT / "scripts/examples").read_text(encoding="utf-8").splitlines()[0]
    assert first == "#!/usr/bin/env bash"
    done = subprocess.run(
        [ROOT / "scripts/examples", "--help"],
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, "scripts/examples [FOLDER]" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_pages_that_are_named_exist(path: Path) -> None:
    """A page that a sentence names without a link exists."""
    named = re.findall(
        r"(?<![\w/(`[])(?:see |in )([\w/.-]+\.md)\b", path.read_text(encoding="utf-8")
    )
    assert [one for one in named if not (path.parent / one).exists()] == []


def test_what_is_refused_by_its_name() -> None:
    """Unknown recipes and misspelled variables are refused, other unknown variables only named."""
    with pytest.raises(SettingsError, match="AGENT_JOB"):
        load({"AGENT_JOB": "no-such-recipe"})
    with pytest.raises(SettingsError, match="AGENT_MODL"):
        load({"AGENT_MODL": "x"})
    assert load({"AGENT_OF_ANOTHER_TOOL": "x"}).misspelled
    assert "Other unknown ones are named in a warning" in page("migrate.md")
    assert "`pod-agent plan -v` shows every step" in page("migrate.md")
