"""Versions are compared by their numbers."""

from __future__ import annotations

import pytest

from agent.base.versions import Version, is_in, release_of, version_text


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("4.54.0", (4, 54, 0)),
        ("2.7.0a0+79aa17489c.nv25.4", (2, 7, 0)),
        ("0.10.0rc1", (0, 10, 0)),
        ("", ()),
        ("unknown", ()),
    ],
)
def test_a_release_is_its_numbers(text: str, release: Version) -> None:
    """What marks a build or a candidate does not count."""
    assert release_of(text) == release
    assert release_of(version_text(release)) == release


@pytest.mark.parametrize(
    ("version", "versions", "is_within"),
    [
        ("4.54.0", ">=4.54,<5", True),
        ("4.53.3", ">=4.54,<5", False),
        ("5.0.0", ">=4.54,<5", False),
        ("2.7.0a0", ">=2.5", True),
        ("0.10.0rc1", "<0.10", False),
        ("0.1", "", True),
        ("0.1", "all", True),
    ],
)
def test_a_range_has_its_first_version_and_not_its_last(
    version: str, versions: str, *, is_within: bool
) -> None:
    """All bounds count."""
    assert is_in(release_of(version), versions) is is_within


def test_what_is_no_range_is_an_error() -> None:
    """A slip in a table is no range that has every version."""
    with pytest.raises(ValueError, match="is no range of versions"):
        is_in((0, 7), "=0.7")
