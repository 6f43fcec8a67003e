"""Which of the versions that a recipe knows stands for the one that is installed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.work.recipes.recipe import Version

_RELEASE = re.compile(r"v?(\d{1,6}(?:\.\d{1,6})*)(.*)", re.DOTALL)
_NO_CHANGE = re.compile(r"(?:\.?post\d+)?(?:\+[\w.]+)?")
"""What may stand behind a release that is that release all the same: 0.9.1.post1, 0.9.1+cu128."""


@dataclass(frozen=True)
class Chosen:
    """A known version, and what is to be said where it is not exactly the installed one."""

    version: Version
    warning: str = ""


class UnknownVersionError(ValueError):
    """No known version stands for it: a sentence that names those that are known."""


def written(version: Version) -> str:
    """Write a version as its project does."""
    return ".".join(str(part) for part in version)


def listed(known: Sequence[Version]) -> str:
    """List versions, oldest first."""
    return ", ".join(written(version) for version in known)


def choose(known: Sequence[Version], text: str) -> Chosen:
    """Return the newest known version that is no newer, within the same minor release.

    A later patch mostly takes the flags of the one before it; a minor release that nobody tried
    may take any. A patch before the first that was tried stands for itself.
    """
    found = _RELEASE.fullmatch(text.strip())
    if found is None:
        raise UnknownVersionError(f"{text!r}, which is no version; known are {listed(known)}")
    release, rest = tuple(int(part) for part in found[1].split(".")), found[2]
    minor = [version for version in known if version[:2] == release[:2]]
    if len(release) == 2 and minor and not rest:
        return Chosen(minor[-1])
    padded = (*release, 0)[: max(len(release), 3)]
    lower = [version for version in minor if version <= padded]
    if minor and not lower:  # its own flags, as far as a recipe tells patches apart
        return Chosen(padded, f"{text} is older than {written(minor[0])}, the first that is known")
    if not lower:
        raise UnknownVersionError(f"{text}, which is not known; known are {listed(known)}")
    nearest = lower[-1]
    if nearest == padded and _NO_CHANGE.fullmatch(rest):
        return Chosen(nearest)
    return Chosen(nearest, f"{text} is not known, and is taken for {written(nearest)}")
