"""The lines that show a run at a terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from agent.base.ends import Kind, Outcome
from agent.base.text import Terminal, duration_text
from agent.cli.rich_view import rich_view
from agent.decisions.head.fleet import NodeState
from agent.decisions.head.head_state import HeadPhase
from agent.diagnosis.advice import Advice
from agent.port.brief_status import bars, brief_lines, lines_by_content
from agent.port.glance import judged
from agent.port.status import status_lines
from agent.port.status_model import ItemStatus, StepStatus, WaitStatus, WarningStatus
from support.statuses import A_HEAD, a_group, a_member, altered
from tools.page.runs import status as run_of

if TYPE_CHECKING:
    from agent.port.status_model import HeadStatus

WAIT = WaitStatus("workers", "1 of 3 joined", 90.0, following=False)
NO_WORD = Outcome(Kind.LOST, 75, "no word", remedy="Try again")
FEW_STEPS = Outcome(Kind.DONE, 0, "3 of 400 steps", is_warning=True)
GSM8K = ItemStatus("gsm8k", "pending", "")
STEERS = "\x1b[2J\x1b[31mred\x07\n\r\u202eevil\u2028"


def booting(run: HeadStatus) -> HeadStatus:
    """Return a run that still boots."""
    phase = HeadPhase.BOOTING
    return replace(run, phase=phase, seconds=30.0, seconds_in_phase=30.0, waits=(WAIT,))


def lines(status: HeadStatus) -> list[str]:
    """Return the lines of a status."""
    return [line.label for line in status_lines(status)]


def test_a_small_run_is_shown_completely() -> None:
    """Phase, job, services, and nodes with rank, name, phase and duration."""
    shown = lines(run_of(3))
    assert shown[0] == (
        "run run-20261122-0712: running for 4 min 25 s, 5 min 37 s since the start, $12.50"
    )
    assert shown[1] == (
        "job rehearsal: running, attempt 2, step 25 of 40, 7.5 s a step, done about 2026-11-22 "
        "07:18 UTC, mean reward 0.89 (+0.19 over the last 20 steps)"
    )
    assert "node head  pod0  running  4 min 25 s" in shown
    (slow,) = [line for line in shown if line.startswith("node 2 ")]
    assert slow.startswith("node 2  pod2  10.0.0.3  joined  following the head  4 min 29 s  fetch")
    assert any(
        line.startswith("service reward server") and "restarts: 1; outages: 1, 8 s" in line
        for line in shown
    )


WARNINGS = (
    WarningStatus("stall", "no step for 9 min; it has gone on", "R0"),
    WarningStatus("stall", "no step for 12 min: rank 17 on pod2", "R1"),
    WarningStatus("slow node", "pod1: GPU utilization 14 %", "R2"),
    WarningStatus("full soon", "disk /c on pod1 reaches 95 % in 2 h", "R3"),
    WarningStatus("training", "loss is nan", "R4"),
    WarningStatus("shared memory", "64 MiB", "R5"),
    WarningStatus.of_advice(Advice("the KL rose", "Less")),
)


def test_warnings_about_what_the_run_does() -> None:
    """The last stall, slow nodes, what will be full, and advice; no finding about a machine."""
    shown = lines(replace(run_of(3), warnings=WARNINGS, slow="GPU power 260 W"))
    assert shown[2:7] == [
        "stall: no step for 12 min: rank 17 on pod2. R1",
        "slow node: pod1: GPU utilization 14 %. R2",
        "full soon: disk /c on pod1 reaches 95 % in 2 h. R3",
        "training: loss is nan. R4",
        "training: the KL rose. Less",
    ]
    assert not any("64 MiB" in line for line in shown)
    assert "node head  pod0  running  4 min 25 s  GPU power 260 W" in shown


def test_waits_verdicts_and_silence() -> None:
    """A wait has its evidence, a verdict its remedy, a silent node the time of its last report."""
    run = booting(run_of(3))
    assert "waiting for workers  90 s left  1 of 3 joined" in lines(run)
    run = altered(run, "waits", following=True)  # the end of the run is no wait
    assert not any(line.startswith("waiting for") for line in lines(run))
    assert lines(replace(run_of(1), verdict=NO_WORD))[1:3] == [
        "lost: no word (exit code 75)",
        "Try again",
    ]
    (few,) = [line for line in lines(replace(run_of(1), verdict=FEW_STEPS)) if "3 of 400" in line]
    assert "done" not in few  # a doubtful success is none
    changes: dict[str, Any] = {"state": NodeState.SILENT, "last_error": "gone"}
    run = altered(run_of(1), "nodes", detail="", heard_seconds_ago=40.0, **changes)
    assert any("last report 40 s ago; gone" in line for line in lines(run))

    # Of 256 nodes the lost one comes first.
    head, worst, *_ = [line for line in lines(run_of(256)) if line.startswith("node ")]
    assert head.startswith("node head ")
    assert worst.startswith("node 256 ")
    assert "its Ray is gone" in worst


@pytest.mark.parametrize(
    ("state", "said", "word"),
    [
        ("lost", {"fetch": "no space left"}, "failed: fetch"),
        ("pending", {"fetch": "40%\x1b[2J"}, "fetch: 40%\\x1b[2J"),
        ("pending", {}, "preparing: fetch"),
        ("ready", {}, "its word"),
    ],
)
def test_a_node_with_prepare_steps(state: str, said: dict[str, str], word: str) -> None:
    """The failed or running step, with its progress if the caller may read logs."""
    steps = (StepStatus("fetch", state),)
    run = altered(run_of(1), "nodes", steps=steps, detail="its word")
    run = replace(run, prepare_lines={"pod1": said, "head": {"gsm8k": "99%"}}, prepare=(GSM8K,))
    shown = lines(run)
    assert any(line.startswith("node 1 ") and line.endswith(word) for line in shown)
    assert any(line.startswith("prepare step gsm8k") and line.endswith("99%") for line in shown)
    assert lines(replace(run, prepare_lines=UNSET))


def test_compile_caches() -> None:
    """How the head's were seeded, and which nodes started cold; nothing where none are kept."""
    run = run_of(3)
    (line,) = [line for line in lines(run) if line.startswith("compile caches")]
    assert "seeded  from /workspace/compile-caches/h100.tar.gz" in line
    assert line.endswith("cold on pod2")
    assert not [line for line in lines(replace(run, caches=None)) if "compile caches" in line]


texts = st.one_of(st.text(max_size=300), st.just(STEERS), st.just("界" * 90), st.just("n" * 300))


@given(nodes=st.integers(0, 30), name=texts, words=texts, is_booting=st.booleans())
def test_no_text_controls_the_terminal(
    nodes: int, name: str, words: str, *, is_booting: bool
) -> None:
    """Each line is one line, whatever a name or a message contains."""
    run = booting(run_of(nodes)) if is_booting else run_of(nodes)
    run = replace(run, waits=(WaitStatus(name, words, -3.0, following=False),))
    run = altered(run, "services", name=name, detail=words)
    for number in range(min(nodes, 5)):
        texts_of_it = {"name": name, "phase": name, "detail": words, "last_error": words}
        run = altered(run, "nodes", number, **texts_of_it)
    shown = (f"{line.label}{line.text}" for line in brief_lines(judged(run)))
    for line in [*lines(run), *shown]:
        assert not set(line) & set(STEERS) - set("[2J31mredevil")


@given(size=st.tuples(st.integers(8, 60), st.integers(60, 200)), nodes=st.integers(0, 300))
def test_the_view_fits_every_terminal(size: tuple[int, int], nodes: int) -> None:
    """No line is too wide, the view is not too high, and it has no markup of its own."""
    height, width = size
    run = run_of(nodes)
    for number in range(min(nodes, 5)):
        changes = {"state": NodeState.LOST, "last_error": "界" * 90}
        run = altered(run, "nodes", number, name="[red]x[/red]:smile:", **changes)
    console = Console(file=io.StringIO(), width=width, no_color=True)
    with console.capture() as captured:
        console.print(
            rich_view(judged(run), "10.0.0.4:8266 does not answer", height, width), end=""
        )
    shown = captured.get().splitlines()
    assert shown[0] == "10.0.0.4:8266 does not answer"
    assert len(shown) <= height
    assert all(cell_len(line) <= width for line in shown)
    assert height < 30 or not nodes or any("[red]x" in line for line in shown)


def test_names_of_nodes_are_not_squeezed() -> None:
    """However much is said of them, their names are shown whole at 80 columns."""
    run = run_of(3)
    name = "trainer-0.grpo-headless.research"
    for number in range(3):
        changes = {"state": NodeState.SILENT, "detail": "a long line " * 20}
        run = altered(run, "nodes", number, name=name, **changes)
    console = Console(file=io.StringIO(), width=80, no_color=True)
    with console.capture() as captured:
        console.print(rich_view(judged(run), "", 40, 80), end="")
    assert captured.get().count(name) >= 3


@pytest.mark.parametrize(
    ("seconds", "words"), [(-4, "0 s"), (119.4, "119 s"), (125, "2 min 5 s"), (9000, "2 h 30 min")]
)
def test_durations(seconds: float, words: str) -> None:
    """A duration has at most two units."""
    assert duration_text(seconds) == words


def brief(status: HeadStatus, columns: int = 80) -> list[str]:
    """Return the lines of a status in one look, at a terminal."""
    return Terminal(columns).render(brief_lines(judged(status)), str).splitlines()


def test_one_look_at_a_run() -> None:
    """What runs, the judgment, the step, the reward with its curve, what is saved, the nodes."""
    run = altered(run_of(2), "nodes", 1, figures=None, slow="")
    run = replace(run, prepare_lines={}, metrics={"actor/ppo_kl": 0.021})
    assert brief(run) == [
        "first sums · rehearsal · attempt 2 of 3 · 5 min 12 s · $12.50",
        "● keep    Training: step 25 of 40. Nothing to do.",
        "          Reward 0.89 (+0.19 over 20 steps); done about 07:18 UTC, in 112 s and",
        "          $0.38. All 3 nodes report.",
        "step      25/40 · 7.5 s each, last 0 s ago · done about 07:18 UTC",
        "reward    0.89 ▲0.19 ▁▂▃▄▅▅▆▆▇▇██████   KL 0.021",
        "saved     step 20, 5 steps ago",
        "nodes     3 fine",
    ]


def large_run() -> HeadStatus:
    """Return a run of 256 nodes, of which some are lost, silent or slow."""
    run = run_of(255)
    for number in (3, 5, 6):
        changes = {"heard_seconds_ago": 40.0, "detail": "probing"}
        run = altered(run, "nodes", number, state=NodeState.SILENT, **changes)
    return altered(run, "nodes", 254, state=NodeState.LOST, last_error="its Ray is gone")


def test_a_large_run_is_a_screen() -> None:
    """What differs is named, the worst first; names and states are whole at 80 columns."""
    shown = brief(large_run())
    assert len(shown) < 24
    (nodes,) = [line for line in shown if line.startswith("nodes ")]
    assert nodes == "nodes     251 fine · 1 lost · 3 silent · 1 slow"
    assert shown[shown.index(nodes) + 1] == "  lost    pod255   its Ray is gone"
    assert "  silent  pod4     probing, 40 s" in shown
    assert max(map(len, shown)) <= 80

    run = large_run()
    for number in range(40):
        changes = {"name": "trainer-0.grpo-headless.research", "last_error": "gone"}
        run = altered(run, "nodes", number, state=NodeState.LOST, **changes)
    shown = brief(run)
    assert len(shown) < 32
    assert sum("trainer-0.grpo-headless.research" in line for line in shown) == 14
    assert shown[-1] == f"          and {40 + 1 + 0 - 12} more: --all shows them"


def test_a_boot_names_what_is_awaited() -> None:
    """The judgment has the wait and its evidence; running steps show their last line."""
    lines_of_steps = {"head": {"gsm8k": "99%"}, "pod2": {"fetch": "40%"}}
    run = replace(booting(run_of(3)), progress=None, nodes_expected=6)
    run = replace(run, prepare=(GSM8K,), prepare_lines=lines_of_steps)
    shown = brief(run)
    assert any("Waiting for workers (1 of 3 joined); 90 s left." in line for line in shown)
    assert "prepare   gsm8k  99%" in shown
    assert "prepare   pod2  fetch: 40%" in shown
    assert shown[-1] == "nodes     4 fine · 2 never reported"


def test_an_end_has_its_sentence_and_remedy() -> None:
    """As the last line of the log has it; a doubtful success is none."""
    over = replace(run_of(1), phase=HeadPhase.LEAVING)
    shown = brief(replace(over, verdict=NO_WORD))
    assert shown[1:3] == ["■ over    lost: no word (exit code 75)", "          Try again"]
    shown = brief(replace(over, verdict=FEW_STEPS))
    assert shown[1] == "▲ over    warning: 3 of 400 steps (exit code 0)"


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], ""),
        ([1.0], ""),
        ([1.0, 1.0], "▄▄"),
        ([0.0, 0.5, 1.0], "▁▅█"),
        ([*range(32)], "▁▁▂▂▃▃▄▄▅▅▆▆▇▇██"),
    ],
)
def test_bars(values: list[float], shown: str) -> None:
    """A curve in at most 16 bars."""
    assert bars(values) == shown


def test_lines_about_changes() -> None:
    """A line for each change; clocks and counts make none."""

    def changes(before: HeadStatus, after: HeadStatus) -> list[str]:
        known = lines_by_content(judged(before))
        shown = lines_by_content(judged(after))
        return [line for content, line in shown.items() if content not in known]

    before = run_of(2)
    after = replace(run_of(2, step=26), seconds=31.0, seconds_in_phase=31.0, cost=13.0)
    after = altered(after, "services", latency=None)
    assert changes(before, after) == []
    gone = "its Ray is gone\x1b[2J"
    after = altered(after, "nodes", state=NodeState.LOST, last_error=gone)
    found = changes(before, after)
    assert any(line.startswith("▲ look") and "pod1" in line for line in found)
    assert "  lost    pod1     its Ray is gone\\x1b[2J" in found
    assert changes(after, after) == []


def test_a_group() -> None:
    """A group's service has a line with states, weights, requests and errors; so have members."""
    dead = a_member(3, "dead", "exit code 1", restarts=2, errors=1)
    group = a_group(*(a_member(n, version="7", requests=5) for n in range(3)), dead, errors=1)
    run = replace(A_HEAD, groups=(group,))
    head = "group rollout  2 of 2 nodes  engine: 3 of 4 serve, 2 needed; 1 dead; weights 7; "
    assert [line for line in lines(run) if "engine" in line] == [
        f"{head}12.5 requests a second; errors: 1",
        "  engine.0 on pod4  serving  weights 7; 0 requests a second",
        "  engine.1 on pod4  serving  weights 7; 0 requests a second",
        "  engine.0 on pod5  serving  weights 7; 0 requests a second",
        "  engine.1 on pod5  dead  errors: 1; restarts: 2  exit code 1",
    ]


def test_a_large_group() -> None:
    """Of many members only those that do not serve have lines, and not all of them."""
    members = [a_member(n, "loading" if n < 40 else "serving") for n in range(512)]
    run = replace(A_HEAD, groups=(a_group(*members),))
    assert sum("loading" in line for line in lines(run)) == 33
    assert "  8 more members of engine do not serve" in lines(run)
    shown = "rollout   engine: 472 of 512 serve, 2 needed · 40 loading · weights 7"
    assert any(line.startswith(shown) for line in brief(run, 120))
