"""`pod-agent init`: asks for what is not given, and writes the start file of a platform."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.cli.start_files import platform_files
from agent.cli.start_files.request import Request, StartFile, presets

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

PODS = Path(__file__).parents[1] / "bundled" / "runpod_pods.py"
"""The program that creates RunPod's pods from a template."""


class Platform(Value, frozen=True):
    """A platform of `init`."""

    render: Callable[[Request], list[StartFile]]
    recipe: str = "verl-grpo"  # what is trained unless the user says otherwise
    rehearsal_gpus: int = 1  # the rehearsal uses none, but some platforms rent only nodes with GPUs
    flag: str = ""  # the flag that chooses among `variants`; the first is the default
    variants: tuple[str, ...] = ("",)


PLATFORMS = {
    "slurm": Platform(
        platform_files.slurm, flag="container", variants=("none", "apptainer", "pyxis", "podman")
    ),
    "runpod": Platform(
        platform_files.runpod, "openrlhf-grpo", flag="kind", variants=("pods", "cluster")
    ),
    "dstack": Platform(platform_files.dstack),
    "skypilot": Platform(platform_files.skypilot),
    "kubernetes": Platform(
        platform_files.kubernetes,
        rehearsal_gpus=0,
        flag="kind",
        variants=("lws", "trainjob", "pytorchjob"),
    ),
    "kuberay": Platform(platform_files.kuberay, rehearsal_gpus=0),
    "ssh": Platform(platform_files.ssh, "rehearsal", rehearsal_gpus=0),
}


def run(options: argparse.Namespace) -> int:
    """Write the start files; return 0, or 2 where something is not given or would be lost."""
    try:
        files = _start_files(options, may_ask=sys.stdin.isatty() and sys.stderr.isatty())
    except _NotGivenError as error:
        print(f"pod-agent init: error: {error}", file=sys.stderr)
        return 2
    options.to.mkdir(parents=True, exist_ok=True)
    for file in files:
        target = options.to / file.name
        target.write_text(file.text, encoding="utf-8")
        if file.is_program:
            target.chmod(0o755)
        print(f"wrote {target}")
    print("Check its first values, or those marked `change`, and model and data in it. Then:")
    print("\n".join(f"  {step}" for step in files[0].next_steps))
    return 0


class _NotGivenError(Exception):
    """Something is missing, or does not fit."""


def _ask(what: str, default: str, names: Sequence[str] = ()) -> str:
    """Ask for one of some names, or for any text; '' takes the default."""
    listed = f": {', '.join(names)}" if names else ""
    while True:
        print(f"{what}{listed} [{default}] ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise _NotGivenError("the input has ended")
        answer = line.strip() or default
        if not names or answer in names:
            return answer


def _start_files(options: argparse.Namespace, *, may_ask: bool) -> list[StartFile]:

    def choose(given: object, what: str, default: str, names: Sequence[str] = ()) -> str:
        if given is not None:
            return str(given)
        return _ask(what, default, names) if may_ask else default

    def choose_number(given: int | None, what: str, default: int) -> int:
        answer = choose(given, what, str(default))
        if not answer.isdecimal():
            raise _NotGivenError(f"{what}: {answer!r} is no number")
        return int(answer)

    if options.platform is None and not may_ask:
        raise _NotGivenError(f"which platform? One of {', '.join(PLATFORMS)}")
    name = choose(options.platform, "platform", "slurm", (*PLATFORMS,))
    platform = PLATFORMS[name]
    recipe = choose(options.recipe, "recipe", platform.recipe, (*presets(),))
    given = options.container or options.kind
    if given is not None and given not in platform.variants:
        takes = f"--{platform.flag} {' or '.join(platform.variants)}" if platform.flag else "none"
        raise _NotGivenError(f"{name} has no {given}; it takes {takes}")
    variant = platform.variants[0]
    if platform.flag:
        variant = choose(given, platform.flag, variant, platform.variants)
    nodes = choose_number(options.nodes, "nodes", 2)
    usual = platform.rehearsal_gpus if recipe == "rehearsal" else 8
    gpus = choose_number(options.gpus, "GPUs of each node", usual)
    if nodes < 1:
        raise _NotGivenError("--nodes 0: a run has a node at least")
    volume = options.volume
    if name == "runpod" and not options.agent_url:
        volume = choose(volume, "id of a network volume that has the one file as pod-agent", "")
        if not volume:
            raise _NotGivenError(
                "runpod: where do pods find the one file? On a network volume (--volume ID), or"
                " --agent-url URL --sha256 DIGEST; dist/SHA256SUMS has the digest"
            )
    if options.agent_url and not options.sha256:
        raise _NotGivenError("--agent-url wants --sha256 DIGEST: it is in dist/SHA256SUMS")
    files = platform.render(
        Request(
            recipe,
            nodes,
            gpus,
            variant,
            image=options.image or "",
            agent=options.agent,
            url=options.agent_url,
            sha256=options.sha256,
            volume=volume or "",
        )
    )
    if name == "runpod" and variant == "pods":
        text = PODS.read_text(encoding="utf-8")
        files.append(StartFile("pods.py", text, (), is_program=True))
    there = [file.name for file in files if (options.to / file.name).exists()]
    if there and not options.force:
        remedy = "Move it away, choose --to FOLDER, or add --force"
        raise _NotGivenError(f"{', '.join(there)} exists. {remedy}")
    return files
