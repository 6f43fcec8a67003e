"""Answers of the agent's port, checked by their schemas."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types

from tools.http.description import closed_components


def validator_of(schema: dict[str, Any]) -> Any:  # noqa: ANN401 - it has no types
    """Return what checks an answer by its schema."""
    return Draft202012Validator({**schema, "components": {"schemas": closed_components()}})
