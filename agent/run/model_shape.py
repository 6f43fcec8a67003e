"""Reads the shape of a recipe's model: also on a Mac or Windows, where `recipe` works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base import times
from agent.frameworks.recipe import shape_of
from agent.node import read
from agent.record.background import run_within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.frameworks.recipe import ModelShape
    from agent.settings.model import Settings


def read_shape(settings: Settings, environ: Mapping[str, str]) -> ModelShape | None:
    """Return the shape of a model from its `config.json` here, else from its name."""
    model = settings.model
    revision = settings.model_revision
    if not model:
        return None
    config = run_within(times.STALLED_DISK, lambda: read.model_config(model, environ, revision))
    return shape_of(model, config)
