"""`doctor --all`: the findings of many nodes, folded, requested from a head, and printed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base.errors import UnavailableError
from agent.checks.finding import Finding, Level, group_findings
from agent.cli import doctor_verb
from agent.cli.http_request import ask
from agent.decisions.head import head_state as h
from agent.port.node_network import bind
from agent.port.status_model import NodesFinding
from support.fake_runs import status_of
from support.heads import Trace, goal, nodes, reported
from support.served import KEY, a_head, environ_of, leave_key
from support.worlds import MACHINE, SECRET, plan_of

if TYPE_CHECKING:
    from pathlib import Path

RAY = Finding("ray", Level.OK, "2.60 on Python 3.11")
SHM = Finding("/dev/shm", Level.OK, "2048 MiB free")
SMALL = Finding("/dev/shm", Level.WARN, "64 MiB", "Give it more")
FULL = Finding("disk", Level.FAIL, "full", "Empty it")


def test_folding() -> None:
    """Errors come first, equal ones once; all passed checks are one row."""
    more = replace(SHM, what="4096 MiB free")
    rows = group_findings([("a", [RAY, SHM]), ("b", [RAY, more, FULL]), ("c", [RAY, SMALL])])
    assert rows == [(FULL, ["b"]), (SMALL, ["c"]), (RAY, ["a", "b", "c"]), (SHM, ["a", "b"])]


@given(st.lists(st.lists(st.sampled_from([RAY, SHM, SMALL, FULL]), unique=True), max_size=6))
def test_nothing_is_lost_in_folding(found: list[list[Finding]]) -> None:
    """Each finding of each node is in exactly one row, and no row is repeated."""
    rows = group_findings((f"n{i}", findings) for i, findings in enumerate(found))
    pairs = [(node, one) for one, names in rows for node in names]
    assert sorted(pairs, key=str) == sorted(
        ((f"n{i}", one) for i, findings in enumerate(found) for one in findings), key=str
    )
    assert len({one for one, _ in rows}) == len(rows)


def test_what_a_head_answers() -> None:
    """Its own findings, its workers', and the differences; none of a node without an agent."""
    plan = plan_of({"EXPECTED_WORKERS": "2"})
    asked = replace(goal(2), facts=MACHINE, node="head0")
    odd = replace(MACHINE, variables={"NCCL_DEBUG": "INFO"})
    introduced = h.WorkerIntroduced("agent2", "pod2", odd, (SMALL,))
    trace = Trace(asked, [(1.0, introduced), (1.0, reported(2)), (2.0, nodes(2, 3))])
    data = status_of(
        trace.state, plan, clean=lambda text: text.replace("64 MiB", "****")
    ).findings()
    assert data.nodes == (plan.topology.node_name, "pod2")
    assert data.unknown == ("10.0.0.3",)
    (between,) = data.between
    assert between.what == "INFO on pod2, not set on head0"
    small = NodesFinding("/dev/shm", Level.WARN, "****", "Give it more", nodes=("pod2",))
    assert small in data.findings
    assert len(data.findings) > len(plan.findings)


def test_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the head's node the key in the run folder opens it; 78 if a check fails."""
    leave_key(tmp_path, KEY)
    with a_head() as head:
        environ = environ_of(head.port, tmp_path)
        assert doctor_verb.show_findings(environ, as_json=False) == 78
        assert capsys.readouterr().out.splitlines() == [
            "FAIL disk: full. Empty [pod1]",
            "warn NCCL_DEBUG: a on pod1. Alike [between nodes]",
            "     nothing is known about 10.0.0.9: no agent runs there",
            "ok   1 check passed",
        ]
        assert doctor_verb.show_findings(environ, as_json=False, verbose=True) == 78
        assert "ok   ray: 2.60 [all nodes]" in capsys.readouterr().out
        assert doctor_verb.show_findings(environ, as_json=True) == 78
        data = json.loads(capsys.readouterr().out)
        assert (data["ok"], data["nodes"]) == (False, ["pod0", "pod1"])


def test_without_proof_nothing_is_answered(tmp_path: Path) -> None:
    """Findings have paths and addresses: refused without the key, and if a token is set."""
    with a_head() as head:
        assert ask(f"http://127.0.0.1:{head.port}/findings").status == 401
        with pytest.raises(UnavailableError, match="RAY_AUTH_TOKEN"):
            doctor_verb.show_findings(environ_of(head.port, tmp_path), as_json=False)
    with a_head(SECRET) as head:
        assert ask(f"http://127.0.0.1:{head.port}/findings", KEY).status == 401
        assert ask(f"http://127.0.0.1:{head.port}/findings", SECRET).status == 200


def test_no_head_answers(tmp_path: Path) -> None:
    """An error with the evidence."""
    free = bind("127.0.0.1", 0)
    port = free.getsockname()[1]
    free.close()
    with pytest.raises(UnavailableError, match="connection refused"):
        doctor_verb.show_findings(environ_of(port, tmp_path), as_json=False)
