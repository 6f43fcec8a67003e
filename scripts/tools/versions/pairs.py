"""The pairs of Ray and Python, the scenarios of each, and the table of their results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from agent.base.versions import release_of
from agent.node.facts import FIRST_WITH_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NEWEST = "newest"
RAYS = ("2.40", "2.44", "2.49", "2.52", "2.55", NEWEST)
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
ALL = tuple(f"{ray}/{python}" for ray in RAYS for python in PYTHONS)
"""A pair is written RAY/PYTHON; its Ray is a series such as 2.44, a release, or the newest."""

BOOT = "tests/lab/test_boot.py::test_one_environment_two_runs"
TOKEN = "tests/lab/test_one_run.py"  # noqa: S105 - a file's name
REFUSAL = "tests/lab/test_versions.py::test_a_ray_without_token_auth_is_refused"
NOT_RUN = "not run"


class Result(NamedTuple):
    """The result of one pair."""

    ray: str
    """Its full version, from the agent in that environment; '' if there is none."""
    said: str
    is_failure: bool = False


def parse(pair: str) -> tuple[str, str]:
    """Return Ray and Python of a pair."""
    match = re.fullmatch(rf"(\d+\.\d+(?:\.\d+)?|{NEWEST})/(3\.\d+)", pair)
    if match is None:
        raise ValueError(f"{pair!r} is no RAY/PYTHON such as 2.44/3.12 or {NEWEST}/3.13")
    return match[1], match[2]


def requirement(ray: str) -> str:
    """Return the requirement for pip; a series means its last release."""
    if ray == NEWEST:
        return "ray[default]"
    last = ".*" if ray.count(".") == 1 else ""
    return f"ray[default]=={ray}{last}"


def scenarios(installed: str) -> dict[str, str]:
    """Choose the scenarios for a Ray, by name: without token auth, it must refuse a token."""
    has_token = release_of(installed) >= FIRST_WITH_TOKEN
    return {"boot": BOOT, "token": TOKEN if has_token else REFUSAL}


def table(results: Mapping[str, Result]) -> str:
    """Render all pairs as Markdown: one row per Ray, one column per Python."""
    pairs = [parse(pair) for pair in {**dict.fromkeys(ALL), **results}]
    pythons = _in_order({python for _, python in pairs})
    lines = ["| Ray | " + " | ".join(f"Python {python}" for python in pythons) + " |"]
    lines.append("| --- " * (len(pythons) + 1) + "|")
    for ray in _in_order({ray for ray, _ in pairs}):
        row = [results.get(f"{ray}/{python}", Result("", NOT_RUN)) for python in pythons]
        releases = _in_order({result.ray for result in row} - {""})
        head = f"{ray} ({', '.join(releases)})" if releases else ray
        lines.append(f"| {head} | " + " | ".join(result.said for result in row) + " |")
    return "\n".join(lines)


def _in_order(versions: Iterable[str]) -> list[str]:
    """Sort versions by their numbers, the newest last."""
    return sorted(versions, key=lambda one: (one == NEWEST, [*map(int, re.findall(r"\d+", one))]))
