"""The commands of the prime-rl example, read by prime-rl's own launcher and configuration.

`rl --dry-run --resume` is prime-rl's own and writes the files of its processes; train.sh then
starts its programs, of which each only reads its arguments (inside/prime_rl_program.py). So do the
engines of services/prime-rl.toml.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from agent.base.text import parse_toml
from tools.frameworks.packages import REPO, CannotFetchError, checkouts

EXAMPLES = REPO / "examples"
PYTHON = "POD_AGENT_PRIME_RL_PYTHON"
PROGRAMS = ("trainer", "orchestrator", "inference", "env-server")
LIMIT = 120.0
LONGEST = 600
RL = """
output_dir = "{folder}/runs"
max_steps = 20
seq_len = 2048
run.name = "reverse"
model.name = "PrimeIntellect/Qwen3-0.6B-Reverse-Text-SFT"
slurm.job_name = "reverse"
ckpt.interval = 20
weight_broadcast.type = "filesystem"
trainer.optim.lr = 3e-6
inference.vllm.tensor_parallel_size = 1

[deployment]
type = "multi_node"
num_train_nodes = 2
num_infer_nodes = 2

[orchestrator]
batch_size = 128
group_size = 16
renderer.name = "prime-qwen3"

[[orchestrator.train.source]]
name = "reverse-text"
env.taskset.id = "harbor"
env.agent.harness.id = "null"
env.agent.runtime.type = "subprocess"
"""
"""The file for several nodes, with a task set of the package verifiers."""
TORCHRUN = """
while [ "$1" != prime_rl.trainer.rl.train ]; do shift; done
shift
"""
"""What stands before the trainer's own arguments is torchrun's."""


def read_prime_rl() -> str:
    """Run train.sh and an engine's command; return what was read, or raise CannotFetchError."""
    python = os.environ.get(PYTHON)
    if not python:
        raise CannotFetchError(f"{PYTHON} names no Python with the packages of prime-rl-configs")
    sources = checkouts("prime-rl") / "prime-rl"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rl.toml").write_text(RL.format(folder=folder), encoding="utf-8")
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
        run = f"{folder}/runs/reverse"
        urls = ("http://10.0.0.1:8000/v1", "http://10.0.0.1:22000", "http://10.0.0.1:22001")
        command = (EXAMPLES / "prime-rl/train.sh", f"{folder}/rl.toml", run, *urls)
        called([*map(str, command)], env)
        called(engine(run), env)
        misspelled = [*engine(run), "--server.prt", "1"]
        if subprocess.run(misspelled, env=env, check=False, capture_output=True).returncode == 0:
            raise CannotFetchError("its configuration takes a key that it does not have")
        read = {*(folder / "read").read_text(encoding="utf-8").split()}
    if read != {*PROGRAMS}:
        raise CannotFetchError(f"only {', '.join(sorted(read))} read their arguments")
    return f"rl --dry-run wrote the files; read their arguments: {', '.join(PROGRAMS)}"


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


def engine(run: str) -> list[str]:
    """Return the command of an engine of the example, for a run's folder."""
    text = (EXAMPLES / "services/prime-rl.toml").read_text(encoding="utf-8")
    command = parse_toml(text)["services"]["engine"]["command"]
    filled = command.replace("/volume/runs/reverse", run).replace("{node_ip}", "10.0.0.2")
    return shlex.split(filled.removeprefix("exec ").replace("{port}", "31000"))


def called(command: list[str], env: dict[str, str]) -> None:
    """Run a command that must succeed."""
    try:
        done = subprocess.run(
            command, env=env, check=False, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        raise CannotFetchError(f"{command[0]} was not done within {LIMIT:g} s") from None
    if done.returncode != 0:
        said = f"{done.stdout}{done.stderr}".strip()[-LONGEST:]
        raise CannotFetchError(f"{command[0]}: exit code {done.returncode}: {said}")
