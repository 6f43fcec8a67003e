"""The commands of the recipe prime-rl, read by prime-rl's own launcher and configuration.

The launcher's class reads the flags for every set of nodes. For one of them, and for a user's own
configuration, the recipe's script runs: `rl --dry-run --resume` is prime-rl's own and writes the
files of its processes, and of each program only the arguments are read
(inside/prime_rl_program.py). So are those of the engines that the recipe brings.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from agent.frameworks.prime_rl import VERSIONS
from agent.job.recipe_services import recipe_tables
from agent.settings import load
from tools.frameworks.commands import made
from tools.frameworks.packages import CannotFetchError, checkouts

PYTHON = "POD_AGENT_PRIME_RL_PYTHON"
PROGRAMS = ("trainer", "orchestrator", "inference", "env-server")
LIMIT = 300.0
LONGEST = 600
OWN_FILE = """
max_steps = 20
seq_len = 2048

[trainer.optim]
lr = 3e-6

[orchestrator]
batch_size = 128
group_size = 16
renderer.name = "prime-qwen3"

[[orchestrator.train.source]]
name = "one"
env.taskset.id = "harbor"

[[orchestrator.train.source]]
name = "another"
env.taskset.id = "harbor"
"""
"""Two environments, of the package verifiers."""
TORCHRUN = """
while [ "$1" != prime_rl.trainer.rl.train ]; do shift; done
shift
"""
"""What stands before the trainer's own arguments is torchrun's."""
SETTINGS = {
    "AGENT_JOB": "prime-rl",
    "AGENT_MODEL": "/volume/Qwen3-8B",
    "AGENT_TRAIN_DATA": "harbor",
    "AGENT_TENSOR_PARALLEL": "2",
}


def read_prime_rl() -> str:
    """Read all commands; return what was read, or raise CannotFetchError."""
    python = os.environ.get(PYTHON)
    if not python:
        raise CannotFetchError(f"{PYTHON} names no Python with the packages of prime-rl-configs")
    sources = checkouts("prime-rl") / "prime-rl"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = f"{sources / 'packages/prime-rl-configs/src'}:{sources / 'src'}"
        env = {
            "PATH": f"{programs(folder, python)}:{os.environ['PATH']}",
            "PYTHONPATH": path,
            "HOME": name,
            "NNODES": "2",
            "NODE_RANK": "0",
            "NPROC_PER_NODE": "8",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "6379",
            "AGENT_ATTEMPT_ID": "r-1",
            "AGENT_PROGRESS_FILE": f"{folder}/progress-1.jsonl",
        }

        # The flags for every set of nodes; the last ones are the largest set of inputs.
        commands = list(made("prime-rl", VERSIONS[-1]))
        cases = [command.case for command in commands if command.case is not None]
        reader = Path(__file__).with_name("inside") / "prime_rl_program.py"
        called([python, str(reader), "rl"], env, json.dumps([case.argv[3:] for case in cases]))

        # The script and its programs, for flags and for a file; the engines.
        (folder / "own.toml").write_text(OWN_FILE, encoding="utf-8")
        last = cases[-1]
        run = f"{folder}/run"
        place, router, engines, *flags = (word.replace(last.argv[0], run) for word in last.argv)
        script = ("bash", last.module, place, router, engines)
        called([*script, *flags], env)
        called([*script, "@", f"{folder}/own.toml", *wiring(flags)], env)
        called(engine(), env)
        refuses_keys([*engine(), "--server.prt", "1"], env)
        refuses_keys(["rl", *flags, "--seq-lenn", "1", "--dry-run", "--resume"], env)
        read = {*(folder / "read").read_text(encoding="utf-8").split()}
    if read != {*PROGRAMS}:
        raise CannotFetchError(f"only {', '.join(sorted(read))} read their arguments")
    counts = f"{len(cases)} of {len(commands)} commands, the others refused by the recipe"
    return f"rl read {counts}, and wrote the files; read their arguments: {', '.join(PROGRAMS)}"


def refuses_keys(misspelled: list[str], env: dict[str, str]) -> None:
    """Raise CannotFetchError if a program takes a key that it does not have."""
    if subprocess.run(misspelled, env=env, check=False, capture_output=True).returncode == 0:
        raise CannotFetchError(f"{misspelled[0]} takes a key that it does not have")


def wiring(words: list[str]) -> list[str]:
    """Return the flags beside a user's own file: those of no environment, batch and optimizer."""
    kept: list[str] = []
    for flag, value in zip(words, (*words[1:], "--"), strict=True):
        is_own = flag.startswith(("--orchestrator.", "--trainer.", "--max-steps", "--seq-len"))
        if flag.startswith("--") and not is_own:
            kept += [flag] if value.startswith("--") else [flag, value]
    return kept


def programs(folder: Path, python: str) -> Path:
    """Return a folder with prime-rl's programs: its own launcher, and those that only read."""
    own = folder / "bin"
    own.mkdir()
    reader = Path(__file__).with_name("inside") / "prime_rl_program.py"
    texts = {"rl": f'exec {python} -m prime_rl.entrypoints.rl "$@"'}
    for program in PROGRAMS:
        noted = f'{python} {reader} {program} "$@" && echo {program} >> {folder}/read'
        texts[program] = f"{noted} || exit"
    others = f"until grep -q env-server {folder}/read; do sleep 0.1; done"  # its end ends them
    texts["torchrun"] = f"{TORCHRUN}{texts.pop('trainer')}\n{others}"
    texts["env-server"] += "\nexec sleep 60"  # its end would end the job
    for name, text in texts.items():
        file = own / name
        file.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        file.chmod(0o755)
    return own


def engine() -> list[str]:
    """Return the command of an engine that the recipe brings."""
    tables = recipe_tables(load(SETTINGS).settings, None, None)
    command: str = tables["services"]["engine"]["command"]
    filled = command.removeprefix("exec ").replace("{node_ip}", "10.0.0.2")
    return shlex.split(filled.replace("{port}", "31000"))


def called(command: list[str], env: dict[str, str], given: str = "") -> None:
    """Run a command that must succeed."""
    try:
        done = subprocess.run(
            command,
            env=env,
            check=False,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            input=given,
        )
    except subprocess.TimeoutExpired:
        raise CannotFetchError(f"{command[0]} was not done within {LIMIT:g} s") from None
    if done.returncode != 0:
        said = f"{done.stdout}{done.stderr}".strip()[-LONGEST:]
        raise CannotFetchError(f"{command[0]}: exit code {done.returncode}: {said}")
