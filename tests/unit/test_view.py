"""The terminal's view of a run, for runs and terminals of any size."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from agent.base.text import duration_text
from agent.control.rich_view import rich_view
from agent.control.status import (
    Section,
    bar,
    lines_by_content,
    sections,
    toned_lines,
)
from browsing.runs import EVIL
from browsing.runs import status as run_of

BOOTING = {
    "phase": "booting",
    "seconds": 30.0,
    "seconds_in_phase": 30.0,
    "waits": [{"what": "workers", "evidence": "1 of 3 joined", "seconds_left": 90.0}],
}
STEERS = "\x1b[2J\x1b[31mred\x07\n\r\u202eevil\u2028"


def lines_of(view: list[Section], height: int, width: int, *, colored: bool = False) -> list[str]:
    """Return a view as a terminal of this width shows it."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colored,
        color_system="standard" if colored else None,
        no_color=not colored,
    )
    with console.capture() as captured:
        console.print(rich_view(view, height), end="")
    return captured.get().splitlines()


def lines(status: dict[str, Any], height: int, width: int = 120, outage: str = "") -> list[str]:
    """Return a status as a terminal of this size shows it."""
    return [line.rstrip() for line in lines_of(sections(status, outage), height, width)]


def test_a_small_run_is_shown_completely() -> None:
    """Phase, job, services, nodes with rank, name, phase and duration, and the last lines."""
    shown = lines(run_of(3), 40)
    assert shown[0] == (
        "run run-20261122-0712: running for 4 min 25 s, 5 min 37 s since the start, $12.50"
    )
    assert shown[1].startswith("job rehearsal: running, attempt 2, step 25 of 40 [####")
    assert "nodes: 3 workers: 3 joined" in shown
    (slow,) = [line for line in shown if line.startswith("2 ")]
    assert " ".join(slow.split()) == (
        "2 pod2 10.0.0.3 joined following the head 4 min 29 s fetch: Fetching 5 files: 40%"
    )
    (head,) = [line for line in shown if line.startswith("head")]
    assert " ".join(head.split()) == "head pod0 running 4 min 25 s"
    assert any(
        line.startswith("reward server")
        and "restarts: 1; outages: 1, 8 s; answers in 31 ms" in line
        for line in shown
    )
    assert shown[shown.index("the job's last lines") + 6] == EVIL


def test_a_wait_has_a_progress_bar() -> None:
    """Name, elapsed share, time left and evidence of a wait."""
    run = {**run_of(3), **BOOTING}
    (wait,) = [line for line in lines(run, 40) if line.startswith("workers")]
    assert wait.split("  ") == ["workers", "[#####...............]", "90 s left", "1 of 3 joined"]
    running = {**run, "phase": "running"}  # when such a wait began the status does not tell
    (wait,) = [line for line in lines(running, 40) if line.startswith("workers")]
    assert "#" not in wait
    run["waits"] = [{**BOOTING["waits"][0], "following": True}]  # type: ignore[index]  # a list
    assert "waiting for" not in lines(run, 40)


def test_the_worst_nodes_come_first() -> None:
    """Of 256 nodes the lost one comes first, and those without a line are counted."""
    run = run_of(256)
    shown = lines(run, 20)
    assert len(shown) == 20
    (at,) = [number for number, line in enumerate(shown) if line.startswith("nodes: 256")]
    assert "1 lost, 255 joined (" in shown[at]
    assert "more not shown" in shown[at]
    assert shown[at + 1].startswith("head ")
    assert shown[at + 2].startswith("256 ")
    assert "its Ray is gone" in shown[at + 2]


def test_a_silent_node() -> None:
    """The time since its last report is shown, with its last detail."""
    run = run_of(1)
    run["nodes"][0].update(heard_seconds_ago=40.0, state="silent", detail="", last_error="gone")
    assert any("last report 40 s ago; gone" in line for line in lines(run, 40))


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
    run = run_of(1)
    run["nodes"][0].update(steps=[{"name": "fetch", "state": state}], detail="its word")
    run["progress"] = {"pod1": said, "head": {"gsm8k": "99%"}}
    run["prepare"] = [{"name": "gsm8k", "state": "pending", "detail": ""}]
    shown = lines(run, 40)
    assert any(line.startswith("1 ") and line.endswith(word) for line in shown)
    assert any(line.startswith("gsm8k") and line.endswith("99%") for line in shown)
    del run["progress"]
    assert lines(run, 40)


def test_a_verdict_and_an_outage() -> None:
    """A verdict has its remedy; an outage of the head has an own line."""
    verdict = {"kind": "lost", "reason": "no word", "exit_code": 75, "remedy": "Try again"}
    shown = lines({**run_of(1), "verdict": verdict}, 40, outage="10.0.0.4:8266 does not answer")
    assert "lost: no word (exit code 75)" in shown
    assert "Try again" in shown
    assert shown[1] == "10.0.0.4:8266 does not answer"


def test_the_jobs_last_lines_are_shown() -> None:
    """The view has a section for the job's last lines."""
    assert "the job's last lines" in lines(run_of(1), 40)


texts = st.one_of(st.text(max_size=300), st.just(STEERS), st.just("界" * 90), st.just("n" * 300))


@given(
    size=st.tuples(st.integers(8, 60), st.integers(60, 200)),
    nodes=st.integers(0, 300),
    name=texts,
    words=texts,
    is_booting=st.booleans(),
)
def test_the_view_fits_every_terminal(
    size: tuple[int, int], nodes: int, name: str, words: str, *, is_booting: bool
) -> None:
    """No line is too wide, the view is not too high, and no text controls the terminal."""
    height, width = size
    run = {**run_of(nodes), **(BOOTING if is_booting else {})}
    run["waits"] = [{"what": name, "evidence": words, "seconds_left": -3.0}] * 9
    run["job_tail"] = [words] * 9
    run["services"] = [dict(run["services"][0], name=name, detail=words)] * 12
    for node in run["nodes"][:5]:
        node.update(name=name, phase=name, detail=words, last_error=words)
    shown = lines_of(sections(run), height, width)
    assert len(shown) <= height
    for line in shown:
        assert cell_len(line) <= width
        assert not set(line) & set(STEERS) - set("[2J31mredevil")


def test_colors_depend_on_the_terminal() -> None:
    """The tones have colors; markup in names has no effect."""
    run = run_of(1)
    run["nodes"][0]["name"] = "[red]x[/red]:smile:"
    shown = "\n".join(lines_of(sections(run), 40, 120, colored=True))
    assert "\x1b[32m" in shown
    assert "[red]x[/red]:smile:" in shown


@pytest.mark.parametrize(
    ("seconds", "words"), [(-4, "0 s"), (119.4, "119 s"), (125, "2 min 5 s"), (9000, "2 h 30 min")]
)
def test_durations(seconds: float, words: str) -> None:
    """A duration has at most two units."""
    assert duration_text(seconds) == words


def test_a_bar_has_a_fixed_width() -> None:
    """Shares below 0 and above 1 are clipped."""
    assert [bar(share, 4) for share in (-1, 0, 0.5, 1, 7)] == [
        "[....]",
        "[....]",
        "[##..]",
        "[####]",
        "[####]",
    ]


def test_lines_about_changes() -> None:
    """A line for each change; clocks, and counts in a wait's evidence, make none."""

    def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
        known = lines_by_content(before)
        return [line for content, line in lines_by_content(after).items() if content not in known]

    before = {**run_of(2), **BOOTING}
    assert len(lines_by_content(before)) == len(toned_lines(before))
    after = copy.deepcopy(before)
    after.update(seconds=31.0, seconds_in_phase=31.0)
    after["waits"][0].update(evidence="2 of 3 joined", seconds_left=89.0)
    after["services"][0].update(latency=None)
    assert changes(before, after) == []
    after["phase"] = "running"
    after["waits"] = [{"what": "the job", "evidence": "", "seconds_left": 9.0}]
    after["nodes"][0].update(state="lost", last_error="its Ray is gone\x1b[2J")
    after["nodes"][1]["steps"] = [{"name": "fetch", "state": "lost"}]
    after["services"][0].update(state="lost", detail="killed by SIGKILL")
    after["job"]["status"] = "failed"
    after["verdict"] = {"kind": "job-failed", "reason": "exit code 3", "exit_code": 3}
    for node in after["nodes"]:
        node["phases"] = []
    found = [" ".join(line.split()) for line in changes(before, after)]
    assert found == [
        "run run-20261122-0712: running for 31 s, 31 s since the start, $12.50",
        "job-failed: exit code 3 (exit code 3)",
        f"job rehearsal: failed, attempt 2, step 25 of 40 {bar(25 / 40)}, mean reward 0.89",
        "waiting for the job 9 s left no report yet",
        "service reward server lost restarts: 1; outages: 1, 8 s killed by SIGKILL",
        "node head pod0 running 31 s",
        "node 1 pod1 10.0.0.2 lost following the head its Ray is gone\\x1b[2J",
        "node 2 pod2 10.0.0.3 joined following the head failed: fetch",
    ]
    assert changes(after, after) == []
