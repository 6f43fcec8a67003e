"""The frameworks' packages and the environments to read them in, in one ignored folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
FOLDER = REPO / ".frameworks"
FETCH_LIMIT = 600.0
INSTALL_LIMIT = 2400.0
LONGEST = 400
READ_ONLY = (
    "--no-deps",
    "--no-compile",
    "--only-binary=:all:",
    *("--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"),
    *("--platform", "manylinux1_x86_64"),
)
"""A package is read, not installed: any of its wheels will do."""
ENVIRONMENTS = {
    # for reading verl's and OpenRLHF's files; their other imports are stubs
    "judge": (("hydra-core==1.3.*", "numpy", "packaging"),),
    # for training: the wheel for CPUs if an index offers it, otherwise 3 GB with CUDA
    "train": (
        ("torch==2.13.*", "trl==1.16.*", "requests", "pyzmq"),
        ("--no-deps", "peft==0.18.*", "omegaconf==2.4.*", "antlr4-python3-runtime==4.9.3"),
    ),
    # the agent without Ray, as in an image: it uses the Ray of the framework's environment
    "agent": (
        (
            *("structlog", "tenacity", "psutil", "requests", "aiohttp", "anyio", "pyyaml"),
            *("msgspec", "nvidia-ml-py"),
        ),
        ("--no-deps", "--config-settings", "editable_mode=compat", "-e", str(REPO)),
    ),
    # verl with the imports of its main_ppo, not with those that it declares; without wandb.
    # It is installed last and separately: with its pins, pip tries old versions of wandb for long.
    "verl": (
        ("--upgrade", "pip"),
        (
            *("torch==2.13.*", "ray[default]==2.60.*", "transformers==5.9.*", "tensordict==0.10.*"),
            *("accelerate", "codetiming", "datasets", "dill", "hydra-core", "pandas", "pybind11"),
            *("pylatexenc", "tensorboard", "torchdata"),
            *("TransferQueue", "orjson", "cachetools", "fastapi", "uvicorn"),
        ),
        ("--no-deps", "verl==0.9.1", "peft"),
    ),
    # OpenRLHF with its requirements, except for vLLM, flash-attn and packages for GPUs only
    "openrlhf": (
        ("--upgrade", "pip"),
        (
            *("torch==2.13.*", "ray[default]==2.55.*", "transformers==5.15.0", "setuptools"),
            *("accelerate", "aiohttp", "datasets", "einops", "jsonlines", "loralib", "optree"),
            *("packaging", "peft", "pylatexenc", "sympy", "tensorboard", "torchdata"),
            *("torchmetrics", "tqdm", "wheel"),
        ),
        ("--no-build-isolation", "deepspeed==0.19.6"),
        ("--no-deps", "openrlhf==0.11.2"),
    ),
}
"""Each environment, with the calls of pip that fill it."""


CHECKOUTS = {
    "slime": {"slime": "POD_AGENT_SLIME", "megatron": "POD_AGENT_MEGATRON"},
    "prime-rl": {"prime-rl": "POD_AGENT_PRIME_RL"},
}
"""Frameworks that no package index has: the variables that name checkouts of them."""


class CannotFetchError(Exception):
    """A package or environment cannot be fetched; the message is pip's."""


def package(name: str, version: str) -> Path:
    """Return the folder with a package's files, fetched once."""
    folder = FOLDER / "packages" / f"{name}-{version}"
    if not folder.exists():
        new = folder.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        python = environment("judge")
        argv = [str(python), "-m", "pip", "install", "--quiet", *READ_ONLY, "--target", str(new)]
        run([*argv, f"{name}=={version}"], FETCH_LIMIT)
        new.rename(folder)
    return folder


def has_checkouts(name: str) -> bool:
    """Return whether the variables of a framework name folders."""
    return all(Path(os.environ.get(v) or "/nowhere").is_dir() for v in CHECKOUTS[name].values())


def checkouts(name: str) -> Path:
    """Return the folder with links to the checkouts of a framework."""
    if not has_checkouts(name):
        needed = " and ".join(CHECKOUTS[name].values())
        raise CannotFetchError(f"set {needed} to checkouts")
    folder = FOLDER / "checkouts" / name
    folder.mkdir(parents=True, exist_ok=True)
    for part, variable in CHECKOUTS[name].items():
        link = folder / part
        link.unlink(missing_ok=True)
        link.symlink_to(Path(os.environ[variable]).resolve())
    return folder


def environment(name: str) -> Path:
    """Return the Python of one of the suite's environments, made once."""
    folder = FOLDER / name
    made = folder / ".made-from"
    wanted = "\n".join(" ".join(words) for words in ENVIRONMENTS[name])
    if not made.exists() or made.read_text(encoding="utf-8") != wanted:
        print(f"making the environment {name!r}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(folder)], FETCH_LIMIT)
        for words in ENVIRONMENTS[name]:
            pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet"]
            run([*pip, *words], INSTALL_LIMIT)
        made.write_text(wanted, encoding="utf-8")
    return folder / "bin/python"


def run(argv: list[str], limit: float) -> None:
    """Run one step of the fetching."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise CannotFetchError(f"{' '.join(argv[:3])} was not done within {limit:g} s") from None
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise CannotFetchError(
            (errors or done.stderr.strip().splitlines() or ["no message"])[-1][:LONGEST]
        )
