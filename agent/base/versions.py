"""Versions of packages: their numbers, and ranges of versions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Version = tuple[int, ...]  # (0, 9, 1) of 0.9.1
ALL = "all"
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
_BOUND = re.compile(rf"(>=|<)({_NUMBERS.pattern})")


def release_of(text: str) -> Version:
    """Return the numbers of a release, without what marks a build or a candidate; () for none."""
    found = _NUMBERS.match(text)
    return tuple(map(int, found[0].split("."))) if found else ()


def is_in(version: Version, versions: str) -> bool:
    """Return whether a version is in a range such as `>=0.7,<0.9`; `` and `all` have every one."""
    for bound in versions.split(",") if versions not in {"", ALL} else ():
        found = _BOUND.fullmatch(bound)
        if found is None:
            raise ValueError(f"{versions!r} is no range of versions such as >=0.7,<0.9")
        if (version >= release_of(found[2])) != (found[1] == ">="):
            return False
    return True


def version_text(version: Version) -> str:
    """Format a version: 0.9.1."""
    return ".".join(str(part) for part in version)


def version_list(known: Sequence[Version]) -> str:
    """Format a list of versions."""
    return ", ".join(version_text(version) for version in known)
