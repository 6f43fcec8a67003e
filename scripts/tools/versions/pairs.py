"""The pairs of Python and Ray, the scenarios of each, and their notation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.base.versions import release_of
from agent.node.facts import FIRST_WITH_TOKEN

NEWEST = "newest"
RAYS = ("2.40", "2.44", "2.49", "2.52", "2.55", NEWEST)
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


@dataclass(frozen=True)
class Pair:
    """One Python with one Ray: a series such as 2.44, a release such as 2.44.1, or the newest."""

    ray: str
    python: str

    def __str__(self) -> str:
        return f"{self.ray}/{self.python}"

    @property
    def requirement(self) -> str:
        """Return the requirement for pip; a series means its last release."""
        if self.ray == NEWEST:
            return "ray[default]"
        last = ".*" if self.ray.count(".") == 1 else ""
        return f"ray[default]=={self.ray}{last}"


def every_pair() -> list[Pair]:
    """List all supported pairs, the oldest Ray first."""
    return [Pair(ray, python) for ray in RAYS for python in PYTHONS]


def parse(text: str) -> Pair:
    """Parse a pair: RAY/PYTHON."""
    match = re.fullmatch(rf"(\d+\.\d+(?:\.\d+)?|{NEWEST})/(3\.\d+)", text)
    if match is None:
        raise ValueError(f"{text!r} is no RAY/PYTHON such as 2.44/3.12 or {NEWEST}/3.13")
    return Pair(match[1], match[2])


@dataclass(frozen=True)
class Scenario:
    """One test of the lab, and the name of its column."""

    name: str
    test: str


BOOT = Scenario("boot", "tests/lab/test_boot.py::test_one_environment_two_runs")
TOKEN = Scenario("token", "tests/lab/test_one_run.py")
REFUSAL = Scenario("token", "tests/lab/test_versions.py::test_a_ray_without_token_auth_is_refused")


def scenarios(installed: str) -> tuple[Scenario, ...]:
    """Choose the scenarios for a Ray: without token auth, it must refuse a token."""
    return (BOOT, TOKEN if release_of(installed) >= FIRST_WITH_TOKEN else REFUSAL)
