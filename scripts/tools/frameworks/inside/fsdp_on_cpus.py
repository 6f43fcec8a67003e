"""Run a program with accelerate patched to shard models on CPUs, not only on GPUs.

accelerate 1.15 honors `ACCELERATE_USE_FSDP` only with GPUs; torch's FSDP itself works over gloo.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the program that the first argument names."""
    here = str(Path(__file__).parent)
    # the folder of this file has no libraries
    sys.path[:] = [entry for entry in sys.path if entry != here]
    states = importlib.import_module("accelerate.state")
    kinds = importlib.import_module("accelerate.utils").DistributedType
    made = states.AcceleratorState.__init__
    plugins: list[object] = []

    def make_sharded(state: object, *args: object, **fields: Any) -> None:  # noqa: ANN401 - accelerate's
        made(state, *args, **fields)
        plugins.append(fields.get("fsdp_plugin"))
        # a state that is created again has no such attribute
        plugin = next(filter(None, plugins), None)
        if plugin is not None:
            kept = states.AcceleratorState._shared_state  # noqa: SLF001 - there is no other way
            kept.update(distributed_type=kinds.FSDP, fsdp_plugin=plugin)

    states.AcceleratorState.__init__ = make_sharded
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
