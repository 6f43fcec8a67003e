"""Rows about weights that a trainer sends to an inference engine, which refuses them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError

_SENDS = re.compile(
    r"update_(?:named_|bucket_)?(?:weights?|params?|parameters?)\w*"
    r"|\w*(?:sync|receive|broadcast)_(?:policy_)?weights?\w*"
    r"|load_(?:named_)?weights_from_\w+|refit\w*|update_weight_\w+"
)
_LOADS = re.compile(r"load_weights?|\w*weight_loader\w*|load_fused_\w+|load_\w*_weight")
_LONGEST = 70  # characters of a message that a sentence repeats


def refused_weight(error: ParsedError) -> Cause | None:
    """An engine that runs cannot load a weight that the trainer sends."""
    functions = [frame.function.rpartition(".")[2] for frame in error.frames]
    sends = any(_SENDS.fullmatch(function) for function in functions)
    loads = any(_LOADS.fullmatch(function) for function in functions[-4:])
    if not sends or not loads:
        return None
    why = error.message.partition("\n")[0].strip().rstrip(".")
    if not why and error.frames[-1].code.startswith("assert "):
        why = error.frames[-1].code.removeprefix("assert ").rstrip(" ,(")
    if len(why) > _LONGEST:
        why = f"{why[:_LONGEST].rpartition(' ')[0]} …"
    return Cause(
        "weight refused",
        f"the engine cannot load a weight that the trainer sends ({error.name}"
        f"{f': {why}' if why else ''})",
        "Names or shapes differ: compare the engine's version, parallel sizes and quantization "
        "with those that the framework supports",
    )
