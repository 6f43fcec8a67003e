"""The start: what is looked up before the plan is made."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.node import read
from agent.run import plan_input as start
from support import captured


@pytest.mark.parametrize(
    ("name", "hostname", "known"),
    [
        ("slurm-head", "gpu-0", {"gpu-0": ("10.9.9.9",)}),
        ("slurm-head", "gpu-0.cluster.local", {"gpu-0": ("10.9.9.9",)}),
        ("slurm-head", "another", {}),
        ("slurm-worker", "gpu-0", {}),
        ("slurm-one-node-head", "gpu-0", {}),
        ("runpod-head", "gpu-0", {}),
    ],
)
def test_a_heads_own_name_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, name: str, hostname: str, known: dict[str, tuple[str, ...]]
) -> None:
    """Only where the others know the head by its host name, and it has several addresses."""
    environ, facts = captured.read(name)
    facts = replace(facts, hostname=hostname)
    monkeypatch.setattr(read, "gather", lambda *_, **__: facts)
    monkeypatch.setattr(start, "lookup_briefly", lambda *_: ("10.9.9.9",))
    assert start.plan_from_environment(environ, ["true"]).facts.known_names == known
