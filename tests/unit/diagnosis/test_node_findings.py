"""One node's findings as text for the head: whole where it fits, else what matters most."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.flight_recorder import Collective, GroupProgress
from agent.diagnosis.node_findings import NodeFindings, as_text, decode, encode
from agent.diagnosis.stacks import Frame, ProcessStack, ThreadStack, place_of

MOST = 16 << 10
HIDDEN = "hunter2-hunter2"


def process(pid: int, frames: int = 5, threads: int = 1) -> ProcessStack:
    """Return a process whose main thread comes last."""
    own = Frame("compute_score", "/app/reward.py", 44)
    inner = tuple(Frame(f"f{n}", "/usr/lib/python3.11/threading.py", n) for n in range(3))
    outer = tuple(Frame(f"g{n}", "/app/train.py", n) for n in range(frames))
    others = [ThreadStack(f"t{n}", inner * 9) for n in range(threads)]
    main = ThreadStack("MainThread", (*inner, own, *outer))
    return ProcessStack("x", pid, f"rank {pid}", rank=pid, threads=(*others, main))


def test_what_fits_is_whole() -> None:
    """All fields; the head's own name of the node counts."""
    progress = (GroupProgress(0, "0", (0, 1), 7, (Collective(7, "nccl:all_reduce", "x"),)),)
    findings = NodeFindings((process(1),), progress, ("GPU 0: 100 %",), "engine: ok")
    found = decode(encode(findings, MOST), "poda")
    assert found.stacks[0].node == "poda"
    assert found.stacks[0].threads == process(1).threads
    assert (found.collectives, found.notes, found.logs) == (progress, findings.notes, "engine: ok")
    text = as_text(found)
    assert "compute_score (/app/reward.py:44)" in text
    assert "7 nccl:all_reduce" in text
    assert "engine: ok" in text


def test_what_does_not_fit_is_left_out_by_rank() -> None:
    """Logs first, then threads and outer frames: the place of each process stays."""
    many = NodeFindings(
        tuple(process(pid, 60, 30) for pid in range(16)), (), ("n" * 999,) * 50, "l" * 90_000
    )
    text = encode(many, MOST)
    assert len(text) <= MOST
    found = decode(text, "poda")
    assert found.logs == ""
    assert len(found.stacks) == 16
    assert len(found.notes) == 16
    crowd = NodeFindings(tuple(process(pid) for pid in range(500)))
    assert len(encode(crowd, MOST)) <= MOST
    assert encode(crowd, 10) == "{}"


def test_frames_that_are_cut_keep_the_place() -> None:
    """The frame that shows what a process does may lie deep below plumbing."""
    plumbing = tuple(Frame(f"p{n}", "/usr/lib/python3.11/ssl.py", n) for n in range(30))
    deep = (*plumbing, Frame("compute_score", "/app/reward.py", 44))
    stacks = tuple(
        ProcessStack("x", pid, f"rank {pid}", threads=(ThreadStack("MainThread", deep),))
        for pid in range(40)
    )
    found = decode(encode(NodeFindings(stacks), MOST), "poda")
    assert {place_of(one).function for one in found.stacks} == {"compute_score"}


def test_secrets_are_masked() -> None:
    """In every field, before the text is cut."""
    frame = Frame(HIDDEN, f"/app/{HIDDEN}.py", 1)
    stack = ProcessStack("x", 1, HIDDEN, threads=(ThreadStack(HIDDEN, (frame,)),), source=HIDDEN)
    text = encode(
        NodeFindings((stack,), (), (HIDDEN,), HIDDEN), MOST, lambda line: line.replace(HIDDEN, "*")
    )
    assert HIDDEN not in text


@given(st.text())
def test_any_other_text_is_a_note(text: str) -> None:
    """Such as why a node was not examined; an agent of another version costs nothing."""
    found = decode(text, "poda")
    assert found.stacks == ()
    assert decode(json.dumps({"stacks": 7}), "poda").notes
    assert decode("no answer within 30 s", "poda").notes == ("no answer within 30 s",)


def test_control_characters_of_another_node_are_escaped() -> None:
    """They come as escapes of JSON, past the checks of the report's text."""
    stack = ProcessStack("x", 1, "rank 1\x1b[2J\nfake line", source="y")
    found = decode(encode(NodeFindings((stack,), (), ("a\x07b",), "one\ntwo\x1b[0m"), MOST), "poda")
    assert found.stacks[0].role == "rank 1\\x1b[2J\\nfake line"
    assert found.notes == ("a\\x07b",)
    assert found.logs == "one\ntwo"
