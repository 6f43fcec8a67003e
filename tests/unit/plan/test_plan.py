"""The plan: its whole text for typical nodes, and what it decides."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.text import NO_TERMINAL
from agent.checks.finding import Level
from agent.job.job import PLACEHOLDERS
from agent.plan.show import MOST_LINES, render, summary, to_json
from agent.settings.redact import redactor_for
from support.golden import assert_golden, golden_text
from support.worlds import MACHINE, POD, SECRET, our_ray, plan_of, with_ray

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.plan.plan import Plan

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
RUNPOD = {"HEAD_POD_ID": "podaaa", "EXPECTED_WORKERS": "2", "RUNPOD_GPU_COUNT": "8"}
DSTACK = {
    "DSTACK_NODES_NUM": "3",
    "DSTACK_MASTER_NODE_IP": "10.0.0.5",
    "DSTACK_GPUS_PER_NODE": "8",
    "DSTACK_RUN_ID": "run-1",
}
CASES: dict[str, tuple[dict[str, str], Facts, list[str] | None]] = {
    "single": ({}, MACHINE, None),
    "runpod-head": ({**RUNPOD, "RUNPOD_POD_ID": "podaaa"}, POD, None),
    "runpod-worker": ({**RUNPOD, "RUNPOD_POD_ID": "podbbb"}, POD, None),
    "dstack-rank-0": ({**DSTACK, "DSTACK_NODE_RANK": "0"}, replace(MACHINE, gpus=8), None),
    "dstack-rank-2": ({**DSTACK, "DSTACK_NODE_RANK": "2"}, replace(MACHINE, gpus=4), None),
    "token": (
        {
            "RAY_AUTH_TOKEN": SECRET,
            "WANDB_API_KEY": f"{SECRET}-wandb",
            "AGENT_HEAD": "10.0.0.5",
            "HF_TOKEN": f"{SECRET}-hf",
            "AGENT_PREPARE": f"hf download --token {SECRET}-hf",
            "AGENT_JOB_ARGS": f"--key {SECRET}-wandb",
        },
        MACHINE,
        None,
    ),
    "debug-legacy": ({"DEBUG_RAY": "1", "RAY_DEBUG_POST_MORTEM": "1"}, MACHINE, None),
    "debug-post-mortem": ({"DEBUG_RAY": "post-mortem"}, MACHINE, None),
    "no-job": ({"AGENT_JOB": "none", "EXPECTED_WORKERS": "1"}, MACHINE, None),
    "command": (
        {
            "AGENT_PREPARE_EACH": "fetch model",
            "AGENT_PREPARE": "make data",
            "AGENT_NODE_IP": "10.0.0.5",
            "NCCL_SOCKET_IFNAME": "ib0",
            "AGENT_NUM_GPUS": "4",
            "AGENT_RESOURCES": '{"h100": 4}',
            "AGENT_PORT": "9300",
        },
        replace(MACHINE, shm=64 << 20, shm_free=64 << 20, nofile_hard=4096, temp_free=1 << 30),
        ["python", "train.py", "--reward={reward_url}", "--nodes", "{nodes}", "a b"],
    ),
}


def summary_of(plan: Plan, environ: dict[str, str]) -> str:
    """Return the plan in twelve lines, without this machine's Python and the number of checks."""
    text = NO_TERMINAL.render(summary(plan), redactor_for(environ, plan.settings).clean) + "\n"
    text = re.sub(r"^\d+ check", "N check", text, flags=re.MULTILINE)
    return text.replace(shlex.quote(sys.executable), "PYTHON")


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    """Plan and summary equal their files; the JSON agrees with the text; no secret is in them.

    POD_AGENT_UPDATE_GOLDEN=1 rewrites the files.
    """
    environ, facts, command = CASES[name]
    plan = plan_of(environ, facts, command)
    text = golden_text(plan, environ)
    short = summary_of(plan, environ)
    assert_golden(GOLDEN / f"{name}.txt", text)
    assert_golden(GOLDEN / f"{name}.summary", short)
    assert short.count("\n") <= MOST_LINES

    data = json.loads(json.dumps(to_json(plan)))
    assert data["role"] in {"head", "worker"}
    assert {row["check"] for row in data["findings"]} >= {"ray", "/dev/shm"}
    shown = render(plan, redactor_for({}, None))
    assert all(line in shown for line in data["commands"])

    assert SECRET not in f"{text}{short}{plan.settings.ray_auth_token!r}"


def test_checks_that_passed_are_shown_and_counted() -> None:
    """A line for each in the plan, their number in its summary."""
    plan = plan_of({}, MACHINE)
    passed = [row for row in plan.findings if row.level is Level.OK]
    lines = render(plan, redactor_for({}, None)).splitlines()
    shown = [line for line in lines if line.startswith("  ok   ")]
    assert shown == [f"  ok   {row.check}: {row.what}" for row in passed]
    assert summary(plan)[-1].text.startswith(f"{len(passed)} check(s) passed; ")


def test_every_golden_has_its_case() -> None:
    """No file is left over from a case that is gone."""
    assert {file.stem for file in GOLDEN.glob("*.txt")} == CASES.keys()


@pytest.mark.parametrize(
    ("environ", "follows"),
    [
        ({}, ""),
        ({"AGENT_ON_STALL": "stop"}, "; if twice alike, the run ends with 75"),
        (
            {"AGENT_JOB_RETRIES": "2"},
            "; if twice alike, the attempt is lost (without a retry left, it is only logged)",
        ),
        (
            {"AGENT_JOB_RETRIES": "2", "AGENT_ON_STALL": "retry"},
            "; if twice alike, the attempt is lost (without a retry left, it ends with 75)",
        ),
    ],
)
def test_a_plan_says_what_follows_a_stall(environ: dict[str, str], follows: str) -> None:
    """After which time the job is examined, and what that leads to."""
    known = "without a sign of work (steps known: 3 usual steps, at least 5 min)"
    (wait,) = [one for one in plan_of(environ).waits if one.key == "stall"]
    assert wait.what == f"{known}, then the job is examined{follows}"
    (wait,) = [one for one in plan_of({**environ, "AGENT_STALL": "9m"}).waits if one.key == "stall"]
    known = "without a sign of work, or a step where they are known"
    assert wait.what == f"{known}, then the job is examined{follows}"


def test_the_worst_comes_first() -> None:
    """A refusal precedes warnings, and no number of warnings hides one."""
    bad = with_ray(replace(MACHINE, shm=0, shm_free=0, nofile_hard=1, temp_free=0), version="2.1")
    lines = summary(plan_of({**RUNPOD, "RUNPOD_POD_ID": "podaaa"}, bad))
    signs = [line.label for line in lines if line.tone]
    assert signs[:2] == ["refused:   ", "FAIL "]
    assert lines[0].text == f"`run` would be refused (78): {signs.count('FAIL ')} check(s) fail"
    assert signs[1:] == sorted(signs[1:])
    assert lines[signs.count("FAIL ") + 1].label == "role:      "
    assert "more warning" in lines[-1].text


def test_a_slip_is_the_first_line() -> None:
    """An unknown name may explain all that follows."""
    first, second, *_ = summary(plan_of({"AGENT_TRAIN_DATASET": "x"}))
    assert "AGENT_TRAIN_DATASET (did you mean AGENT_TRAIN_DATA?)" in first.text
    assert second.label == "role:      "


def test_a_variable_that_no_shell_expands_is_named() -> None:
    """The job gets its name; a shell, and other uses of `$`, are none of it."""
    warned = {
        ("train", "--n=$NODES", "${NODES}"): ["$NODES and ${NODES} in the job's command stays"],
        ("bash", "-c", "train $NODES"): [],
        ("train", "a=${model.path}", "${b}", "$5", "$$"): [],
    }
    for command, starts in warned.items():
        findings = plan_of({}, MACHINE, [*command]).findings
        found = [one.what for one in findings if one.check == "placeholders"]
        assert len(found) == len(starts)
        assert all(what.startswith(start) for what, start in zip(found, starts, strict=True))


def test_a_mistyped_placeholder_is_named() -> None:
    """It would reach the command as it is, as any other word in braces; `${…}` is the shell's."""
    command = ["train", "--n={node}", "{gpus}", "{nodes}", "${node}", "{step}", "{}", "{Step}"]
    found = [f for f in plan_of({}, MACHINE, command).findings if f.check == "placeholders"]
    assert [finding.remedy for finding in found] == [
        "Did you mean {nodes}?",
        "Did you mean {gpus_per_node}?",
        f"Placeholders are {' '.join(f'{{{name}}}' for name in PLACEHOLDERS)}",
    ]
    assert found[-1].what == "{step} in the job's command is no placeholder and stays as it is"
    command = ["train", "{nodes-1}", "{node-1}", "{nodes - 1}", "{other-1}", "${nodes-x}"]
    found = [f for f in plan_of({}, MACHINE, command).findings if f.check == "placeholders"]
    assert [finding.what.split()[0] for finding in found] == ["{node-1}", "{nodes"]
    assert "take a sign and a number: {nodes-1}, {nodes/2}" in found[0].remedy
    command = ["train", "http://{adress:judge}:8000", "{other:x}", "${adress:x}"]
    (slip,) = [f for f in plan_of({}, MACHINE, command).findings if f.check == "placeholders"]
    assert slip.remedy == "Did you mean {address:judge}?"


def test_computed_sizes_are_shown_filled() -> None:
    """The plan has them for the expected nodes; what is not whole there is a warning."""
    command = ["train", "--trainers={nodes-1}", "--half={nodes/2}"]
    plan = plan_of({"EXPECTED_WORKERS": "3"}, MACHINE, command)
    assert "train --trainers=3 --half=2" in render(plan, redactor_for({}, None))
    assert to_json(plan)["job"]["argv"] == ["train", "--trainers=3", "--half=2"]

    plan = plan_of({"EXPECTED_WORKERS": "2"}, MACHINE, command)
    (finding,) = [found for found in plan.findings if found.check == "job's command"]
    expected = "the job's command does not fit 3 nodes like this one: {nodes/2} is no whole number"
    assert finding.what.startswith(expected)
    assert "'--half={nodes/2}'" in render(plan, redactor_for({}, None))


@pytest.mark.parametrize(
    ("environ", "facts", "ip", "how"),
    [
        ({"AGENT_NODE_IP": "10.0.0.5"}, MACHINE, "10.0.0.5", "AGENT_NODE_IP"),
        ({}, MACHINE, "10.0.0.5", "default route"),
        ({}, replace(MACHINE, default_source=None), "10.0.0.5", "only address"),
        ({}, replace(MACHINE, default_source=None, interfaces={}), "127.0.0.1", "only address"),
        ({**RUNPOD, "RUNPOD_POD_ID": "podaaa"}, POD, "10.1.0.10", "podnet1"),
        ({**RUNPOD, "RUNPOD_POD_ID": "podbbb"}, POD, None, "route to podaaa.runpod.internal"),
        ({"HEAD_POD_ID": "podaaa"}, POD, None, "must be this node"),
        ({**DSTACK, "DSTACK_NODE_RANK": "0"}, MACHINE, "10.0.0.5", "is an address of this node"),
        ({"AGENT_HEAD": "late.lan", "RAY_WORKER": "0"}, MACHINE, None, "late.lan resolves to"),
    ],
)
def test_the_nodes_address(environ: dict[str, str], facts: Facts, ip: str | None, how: str) -> None:
    """The plan has the node's address, or how `run` finds it."""
    address = plan_of(environ, facts).address
    assert address.ip == ip
    assert how in address.how


@pytest.mark.parametrize(
    ("environ", "facts", "on_done"),
    [
        ({}, MACHINE, "exit"),
        ({}, replace(MACHINE, is_first_process=True), "exit"),
        ({"RUNPOD_POD_ID": "podaaa"}, POD, "hold"),
        ({"RUNPOD_POD_ID": "podaaa"}, replace(POD, is_first_process=False), "exit"),
        ({"RUNPOD_POD_ID": "podaaa", "AGENT_ON_DONE": "exit"}, POD, "exit"),
        ({"AGENT_ON_DONE": "hold"}, MACHINE, "hold"),
    ],
)
def test_when_done(environ: dict[str, str], facts: Facts, on_done: str) -> None:
    """Only RunPod starts a container again whose first process ends, so only there it holds."""
    assert plan_of(environ, facts).on_done == on_done


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        ({}, "127.0.0.1"),
        ({"RAY_AUTH_TOKEN": SECRET}, "0.0.0.0"),
        ({"AGENT_DASHBOARD_HOST": "10.0.0.5"}, "10.0.0.5"),
        ({"AGENT_DASHBOARD_HOST": "10.0.0.5", "RAY_AUTH_TOKEN": SECRET}, "10.0.0.5"),
    ],
)
def test_where_the_dashboard_listens(environ: dict[str, str], host: str) -> None:
    """Without a token Ray's dashboard stays on loopback, unless the user insists."""
    plan = plan_of(environ)
    assert f"--dashboard-host={host}" in our_ray(plan).command(is_head=True)
    assert [p.bind for p in plan.listeners if p.who == "Ray dashboard"] == [host]


def test_a_token_that_ray_does_not_know_guards_the_agent_alone() -> None:
    """Below Ray 2.52 the dashboard stays on loopback, and the plan lists open ports."""
    environ = {"RAY_AUTH_TOKEN": SECRET, "AGENT_ALLOW_INSECURE": "1"}
    plan = plan_of(environ, with_ray(MACHINE, version="2.51.1"))
    assert our_ray(plan).dashboard_host == "127.0.0.1"
    guards = {p.who: p.guard for p in plan.listeners}
    assert guards["agent"] == "token"
    assert guards["Ray GCS"] == guards["Ray workers"] == guards["Ray dashboard"] == "none"
