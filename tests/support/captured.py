"""Captured environments: one file per platform and role, with the expected plan."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.errors import SettingsError
from agent.node.facts import MIB, Facts, RayPython
from agent.plan.make import make_plan
from agent.platforms.resolve import resolve
from agent.settings import load
from support.golden import golden_text

if TYPE_CHECKING:
    from agent.plan.plan import Plan

FOLDER = Path(__file__).parents[1] / "data" / "platforms"
NAMES = sorted(path.stem for path in FOLDER.glob("*.env"))
FIRST_PROCESS = "#! first process"
WITHOUT = ""
"""Removes a variable from a captured environment."""

ADDRESSES = {
    "lo": ("127.0.0.1", "::1"),
    "docker0": ("172.17.0.1",),
    "eth0": ("10.0.0.5",),
    "ens1": ("10.65.0.2",),
    "podnet1": ("10.1.0.10",),
}
"""The network of every captured node: the default route uses eth0."""


def read(name: str) -> tuple[dict[str, str], Facts]:
    """Return a captured environment, and its machine."""
    lines = (FOLDER / f"{name}.env").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    environ = {key: json.loads(text) if text[:1] == '"' else text for key, _, text in pairs}
    return environ, machine(environ, is_first_process=FIRST_PROCESS in lines)


def changed(name: str, changes: dict[str, str]) -> dict[str, str]:
    """Return a captured environment with some variables set and others removed."""
    environ = {**read(name)[0], **changes}
    return {key: text for key, text in environ.items() if text or key not in changes}


def environ_of(line: str) -> dict[str, str]:
    """Return the captured environment that a line names, with its changes.

    `lws-head RAY_WORKER=1 !LWS_GROUP_SIZE` has a variable set, and another removed.
    """
    name, *words = shlex.split(line)
    pairs = [word.partition("=") for word in words]
    return changed(name, {key.lstrip("!"): text for key, _, text in pairs})


def planned(line: str) -> Plan:
    """Return the plan of the captured environment that a line names, on its machine."""
    return plan_of(environ_of(line), read(line.partition(" ")[0])[1])


def machine(environ: dict[str, str], *, is_first_process: bool = False) -> Facts:
    """Return a healthy machine with many interfaces, with the name from its environment."""
    return Facts(
        hostname=environ.get("HOSTNAME", "node-a"),
        interfaces=ADDRESSES,
        ray=RayPython(sys.executable, "3.11.7", "2.60.0"),
        cpus=192,
        memory=2048 * 1024 * MIB,
        shm=1024 * 1024 * MIB,
        shm_free=1024 * 1024 * MIB,
        temp_free=1024 * 1024 * MIB,
        nofile_soft=1024,
        nofile_hard=1_048_576,
        gpus=8,
        is_first_process=is_first_process,
        uid=0 if is_first_process else 1004,
        default_source="10.0.0.5",
    )


def plan_of(environ: dict[str, str], facts: Facts) -> Plan:
    """Return the plan of a node with this environment."""
    loaded = load(environ)
    return make_plan(loaded, resolve(environ, loaded.settings, facts), facts, environ, {})


def text_of(environ: dict[str, str], facts: Facts) -> str:
    """Render a plan, or the error, without this machine's paths."""
    try:
        plan = plan_of(environ, facts)
    except SettingsError as error:
        return "".join(f"refused: {problem.sentence()}\n" for problem in error.problems)
    return golden_text(plan, environ)
