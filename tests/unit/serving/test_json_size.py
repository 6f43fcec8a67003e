"""The number of values in JSON, counted before it is parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.serving.bodies import has_more_values
from support.json_values import ANY_JSON


def values_of(data: Any) -> int:  # noqa: ANN401 - whatever JSON has
    """Return the number of values, names of fields included."""
    if isinstance(data, dict):
        return 1 + len(data) + sum(map(values_of, data.values()))
    return 1 + sum(map(values_of, data)) if isinstance(data, list) else 1


@given(ANY_JSON, st.sampled_from([None, 1]))
def test_every_value_counts(data: object, indent: int | None) -> None:
    """Whatever has many is found, and what has few is not taken for more."""
    body = json.dumps(data, indent=indent).encode()
    count = values_of(data)
    assert has_more_values(body, count // 3 - 1)
    assert not has_more_values(body, 2 * count)


@pytest.mark.parametrize(
    "text", [",[{" * 1000, '",[{' * 1000, "\\" * 999 + ",,", '\\",\\\\",' * 1000, "é,\n" * 1000]
)
def test_signs_in_a_text_do_not_count(text: str) -> None:
    """A report's logs may have any number of them."""
    body = json.dumps({"text": text, "more": [text, 1]}).encode()
    assert not has_more_values(body, 10)
    assert has_more_values(body, 4)


@pytest.mark.parametrize("part", [b"[", b'{"":', b"1,", b'"",', b"{},", b'[""],'])
def test_small_values_are_counted(part: bytes) -> None:
    """What takes many times its size in memory once it is parsed, even where it is no JSON."""
    assert has_more_values(part * 10_001, 10_000)
    assert not has_more_values(part * 1_000, 10_000)
