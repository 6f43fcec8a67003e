"""The input and the result of a check, and the findings of many nodes in one table."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from agent.base.text import Line
from agent.base.value import Required, Value
from agent.node.facts import Facts
from agent.platforms.resolve import Topology
from agent.settings.model import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.base.text import Tone


class Level(str, Enum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Value):
    """The result of one check on this machine."""

    check: Required
    level: Level
    what: str
    remedy: str = ""

    def sentence(self) -> str:
        """Return the finding and its remedy in one line."""
        sentence = f"{self.check}: {self.what}"
        return f"{sentence}. {self.remedy}" if self.remedy else sentence


class CheckedNode(Value):
    """The input of every check."""

    facts: Facts
    settings: Settings
    topology: Topology

    @property
    def is_alone(self) -> bool:
        """Return whether the run has no other node."""
        return self.topology.is_head and self.topology.expected_workers == 0


Result = tuple[Level, str, str]  # level, observation and remedy


def ok(what: str) -> Result:
    """Return the result of a check that passes."""
    return Level.OK, what, ""


def warn(what: str, remedy: str) -> Result:
    """Return the result of a check that only warns."""
    return Level.WARN, what, remedy


def fail(what: str, remedy: str) -> Result:
    """Return the result of a check that refuses the run."""
    return Level.FAIL, what, remedy


_SIGNS: Mapping[Level, tuple[str, Tone]] = {
    Level.FAIL: ("FAIL", "bad"),
    Level.WARN: ("warn", "busy"),
    Level.OK: ("ok  ", "good"),
}
ORDER = tuple(_SIGNS)  # the worst first


def toned_line(finding: Finding, nodes: str = "") -> Line:
    """Return one finding as a line for people, with the nodes that have it."""
    sign, tone = _SIGNS[finding.level]
    return Line(f"{sign} ", f"{finding.sentence()}{nodes}", tone)


def problem_lines(findings: Iterable[Finding], *, verbose: bool = False) -> list[Line]:
    """Return the failures, then the warnings; with `verbose` also the checks that passed."""
    shown = [finding for finding in findings if verbose or finding.level is not Level.OK]
    shown.sort(key=lambda finding: ORDER.index(finding.level))
    return [toned_line(finding) for finding in shown]


def passed_lines(findings: Iterable[Finding]) -> list[Line]:
    """Return how many checks passed."""
    passed = sum(finding.level is Level.OK for finding in findings)
    if not passed:
        return []
    checks = "check" if passed == 1 else "checks"
    return [Line("ok   ", f"{passed} {checks} passed", "good")]


def group_findings(
    nodes: Iterable[tuple[str, Sequence[Finding]]],
) -> list[tuple[Finding, list[str]]]:
    """Return each finding with its nodes, the worst first; checks that passed are equal."""
    rows: dict[object, tuple[Finding, list[str]]] = {}
    for node, findings in nodes:
        for finding in findings:
            key = finding.check if finding.level is Level.OK else finding
            rows.setdefault(key, (finding, []))[1].append(node)
    return sorted(rows.values(), key=lambda row: ORDER.index(row[0].level))
