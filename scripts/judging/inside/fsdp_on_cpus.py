"""Run a program whose accelerate shards models on CPUs, too, which it does on GPUs only.

accelerate 1.15 takes `ACCELERATE_USE_FSDP` for GPUs alone; torch's FSDP itself works over gloo.
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
    sys.path[:] = [entry for entry in sys.path if entry != here]  # its siblings are not libraries
    states = importlib.import_module("accelerate.state")
    kinds = importlib.import_module("accelerate.utils").DistributedType
    made = states.AcceleratorState.__init__
    plugins: list[object] = []

    def make_sharded(state: object, *args: object, **fields: Any) -> None:  # noqa: ANN401 - accelerate's
        made(state, *args, **fields)
        plugins.append(fields.get("fsdp_plugin"))
        plugin = next(filter(None, plugins), None)  # a state that is made again has none
        if plugin is not None:
            kept = states.AcceleratorState._shared_state  # noqa: SLF001 - there is no other way
            kept.update(distributed_type=kinds.FSDP, fsdp_plugin=plugin)

    states.AcceleratorState.__init__ = make_sharded
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
