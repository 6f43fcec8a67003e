"""A framework's table, and the engine that fills its settings: verl.toml explains the form.

A table has what can be read and changed without Python: versions and what changed with them, the
arguments that a recipe sets with their reasons, what the start files set, and how the framework
prints steps and writes checkpoints. A framework's module computes the quantities that they name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import field, to_builtins

from agent.base.text import parse_toml
from agent.base.typed import convert
from agent.base.value import Value
from agent.base.versions import is_in, release_of
from agent.frameworks.framework import FrameworkInfo, Preset
from agent.frameworks.step_format import OWN_LINES, bar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.base.versions import Version
    from agent.frameworks.arguments import Row

Facts = Mapping[str, object]
"""The quantities and conditions of a command, by the names that a table has for them."""
_NAME = re.compile(r"\{(\w+)\}")
_NOT = "not "


class Moved(Value, forbid_unknown_fields=True):
    """A key with a new name."""

    old: str
    new: str
    since: str
    refused: str = ""  # The version from which the old name is refused or ignored; '': `since`


class Group(Value):
    """Settings under the same conditions: the value and the reason of each key."""

    part: str  # Of the command, where one is made in parts; else ''
    when: tuple[str, ...]  # Names of facts; `not x` where x must not be so
    versions: str
    rows: Mapping[str, tuple[str, str]]


class FrameworkTable(Value, frozen=True, forbid_unknown_fields=True, dict=True):
    """The contents of a table."""

    about: str
    framework: FrameworkInfo
    presets: Mapping[str, Preset]
    settings: tuple[Group, ...] = ()
    releases: tuple[str, ...] = field(name="versions", default=())
    changes: Mapping[str, str] = field(default_factory=dict)
    moved: tuple[Moved, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The values that a key may have, where the framework checks them too late."""
    keys: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    """The keys of its configuration: by tree, by section, and by range of versions."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """The flags of its program, by the words that they take: see `Arguments`."""

    @cached_property
    def versions(self) -> tuple[Version, ...]:
        """Return the known releases, oldest first."""
        return tuple(map(release_of, self.releases))

    def has(self, change: str, version: Version) -> bool:
        """Return whether a version has one of `changes`."""
        return is_in(version, self.changes[change])

    def spelled(self, key: str, version: Version) -> str:
        """Return a key, which may begin with `+`, as a version calls it."""
        name = key.removeprefix("+")
        for moved in self.moved:
            if f"{name}.".startswith(f"{moved.new}.") and not is_in(version, f">={moved.since}"):
                older = key.removesuffix(name) + moved.old + name.removeprefix(moved.new)
                return self.spelled(older, version)
        return key

    def newest(self, key: str) -> str:
        """Return a key, as any version calls it, by its newest name."""
        for moved in self.moved:
            if f"{key}.".startswith(f"{moved.old}."):
                return self.newest(moved.new + key.removeprefix(moved.old))
        return key

    @cached_property
    def words_of_flags(self) -> dict[str, str]:
        """Return the words that each flag takes."""
        return {flag: words for words, flags in self.flags.items() for flag in flags.split()}

    def rows(self, version: Version, facts: Facts, part: str = "") -> Iterator[Row]:
        """Yield the settings of a part that apply, in the order of the table."""
        for group in self.settings:
            if group.part != part or not is_in(version, group.versions):
                continue
            if not _holds(group.when, facts):
                continue
            for key, (value, why) in group.rows.items():
                yield self.spelled(key, version), _filled(value, facts), _filled(why, facts)

    def sections(self, tree: str, version: Version) -> dict[str, set[str]]:
        """Return the keys of each section of a tree in a version; the root is ''."""
        sections: dict[str, set[str]] = {}
        for names, by_versions in self.keys[tree].items():
            for versions, keys in by_versions.items():
                if is_in(version, versions):
                    for name in names.replace("root", "").split(", "):
                        sections.setdefault(name, set()).update(keys.split())
        return sections


def _holds(when: tuple[str, ...], facts: Facts) -> bool:
    """Return whether all conditions are so; those behind one that is not are not asked."""
    return all(bool(facts[name.removeprefix(_NOT)]) != name.startswith(_NOT) for name in when)


def _filled(text: str, facts: Facts) -> str:
    """Return a text with quantities in place of their names."""
    return _NAME.sub(lambda found: str(facts[found[1]]), text)


def read_table(name: str) -> FrameworkTable:
    """Read a table of this folder."""
    data = _parsed(name)

    # A group is written as its rows, beside their conditions.
    data["settings"] = [
        {
            "part": group.pop("part", ""),
            "when": group.pop("when", ()),
            "versions": group.pop("versions", ""),
            "rows": group,
        }
        for group in data.pop("settings", ())
    ]

    # A preset is written as what differs from another one.
    presets = data["presets"]
    for recipe, preset in presets.items():
        presets[recipe] = presets.get(preset.pop("like", ""), {}) | preset

    # So are what is known about a fork, and its lines of steps.
    framework = data["framework"]
    if "like" in framework:
        framework = _parsed(framework.pop("like"))["framework"] | framework
    steps = framework["steps"]
    if "like" in steps:
        steps = _parsed(steps.pop("like"))["framework"]["steps"] | steps

    lines = [_line(line) for line in steps["lines"]]
    data["framework"] = framework | {"steps": steps | {"lines": lines}}
    return convert(data, FrameworkTable)


def _line(written: dict[str, Any]) -> dict[str, Any]:
    """Return a line of steps: a progress bar is written as its description, our own by a name."""
    if "bar" in written:
        line: dict[str, Any] = to_builtins(bar(written["bar"]))
        return line
    return to_builtins(OWN_LINES[written["own"]]) if "own" in written else written


def _parsed(name: str) -> dict[str, Any]:
    return parse_toml(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
