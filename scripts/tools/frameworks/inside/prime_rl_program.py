"""Read the arguments of prime-rl's programs by its own configuration, in its Python.

`prime_rl_program.py PROGRAM ARGUMENT...`: exit code 0 if its class takes them. `rl` reads a list of
commands in JSON from its input. It needs prime-rl's sources on PYTHONPATH, and none of its packages
for GPUs.
"""

from __future__ import annotations

import importlib
import json
import sys

CLASSES = {
    "rl": ("rl", "RLConfig"),
    "trainer": ("trainer", "TrainerConfig"),
    "orchestrator": ("orchestrator", "OrchestratorConfig"),
    "inference": ("inference", "InferenceConfig"),
    "env-server": ("env_server", "EnvServerConfig"),
}
"""The class that the main function of each program gives to `cli`."""


def main() -> None:
    """Read the arguments as the program's main function does."""
    program, *arguments = sys.argv[1:]
    module, name = CLASSES[program]
    config = getattr(importlib.import_module(f"prime_rl.configs.{module}"), name)
    commands = json.load(sys.stdin) if program == "rl" else [arguments]
    for words in commands:
        sys.argv = [program, *words]
        importlib.import_module("prime_rl.utils.config").cli(config)


if __name__ == "__main__":
    main()
