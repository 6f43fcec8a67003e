"""`pod-agent init`: asks for what is not given, and writes the start file of a platform."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.work.start_files import platforms
from agent.work.start_files.request import Request, StartFile, presets

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

Render = Callable[[Request], list[StartFile]]
PODS = Path(__file__).parents[1] / "bundled" / "runpod_pods.py"
"""The program that creates RunPod's pods from a template."""


class Platform(Value, frozen=True):
    """A platform of `init`."""

    render: Render
    recipe: str = "verl-grpo"  # what is trained unless the user says otherwise
    nodes: int = 2
    rehearsal_gpus: int = 1  # the rehearsal uses none, but some platforms rent only nodes with GPUs
    flag: str = ""  # the flag that chooses among `variants`; the first is the default
    variants: tuple[str, ...] = ("",)


PLATFORMS = {
    "slurm": Platform(
        platforms.slurm, flag="container", variants=("none", "apptainer", "pyxis", "podman")
    ),
    "runpod": Platform(
        platforms.runpod, "openrlhf-grpo", flag="kind", variants=("pods", "cluster")
    ),
    "dstack": Platform(platforms.dstack),
    "skypilot": Platform(platforms.skypilot),
    "kubernetes": Platform(
        platforms.kubernetes,
        rehearsal_gpus=0,
        flag="kind",
        variants=("lws", "trainjob", "pytorchjob"),
    ),
    "kuberay": Platform(platforms.kuberay, rehearsal_gpus=0),
    "ssh": Platform(platforms.ssh, "rehearsal", rehearsal_gpus=0),
}


def run(options: argparse.Namespace) -> int:
    """Write the start files; return 0, or 2 where something is not given or would be lost."""
    error = ""
    try:
        files = _start_files(options, may_ask=sys.stdin.isatty() and sys.stderr.isatty())
    except _NotGivenError as missing:
        files, error = [], str(missing)
    targets = [options.to / file.name for file in files]
    there = [str(target) for target in targets if target.exists() and not options.force]
    if there:
        remedy = "Move it away, choose --to FOLDER, or add --force"
        error = f"{', '.join(there)} exists. {remedy}"
    if error:
        print(f"pod-agent init: error: {error}", file=sys.stderr)
        return 2
    options.to.mkdir(parents=True, exist_ok=True)
    for target, file in zip(targets, files, strict=True):
        target.write_text(file.text, encoding="utf-8")
        if file.is_program:
            target.chmod(0o755)
        print(f"wrote {target}")
    lines = "first three lines" if targets[0].suffix == ".json" else "three lines marked `change`"
    print(f"Check its {lines}, and the model and the data in it. Then:")
    print("\n".join(f"  {step}" for step in files[0].next_steps))
    return 0


class _NotGivenError(Exception):
    """Something is missing, or does not fit."""


def _ask(what: str, default: str, names: Sequence[str] = ()) -> str:
    """Ask for a name, by itself or by its number, or for any text; '' takes the default."""
    shown = "".join(f"  {number} {name}" for number, name in enumerate(names, 1))
    while True:
        print(f"{what}{':' if names else ''}{shown[1:]} [{default}] ", end="", file=sys.stderr)
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise _NotGivenError("the input has ended")
        answer = line.strip() or default
        if answer.isdecimal() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        if not names or answer in names:
            return answer


def _start_files(options: argparse.Namespace, *, may_ask: bool) -> list[StartFile]:
    """Complete the request, at a terminal by questions, and make the files."""

    def choose(given: str | None, what: str, default: str, names: Sequence[str] = ()) -> str:
        return given or (_ask(what, default, names) if may_ask else default)

    def choose_number(given: int | None, what: str, default: int) -> int:
        while given is None:
            answer = choose(None, what, str(default))
            given = int(answer) if answer.isdecimal() else None
        return given

    if options.platform is None and not may_ask:
        raise _NotGivenError(f"which platform? One of {', '.join(PLATFORMS)}")
    name = choose(options.platform, "platform", "slurm", (*PLATFORMS,))
    platform = PLATFORMS[name]
    recipe = choose(options.recipe, "recipe", platform.recipe, (*presets(),))
    for flag in ("container", "kind"):
        given = getattr(options, flag)
        if given is not None and (flag != platform.flag or given not in platform.variants):
            variants = " or ".join(platform.variants)
            fits = f"--{platform.flag} {variants}" if platform.flag else "none"
            raise _NotGivenError(f"{name} has no --{flag} {given}; it takes {fits}")
    flag, variant = platform.flag, platform.variants[0]
    if flag:
        variant = choose(getattr(options, flag), flag, variant, platform.variants)
    nodes = choose_number(options.nodes, "nodes", platform.nodes)
    usual = platform.rehearsal_gpus if recipe == "rehearsal" else 8
    gpus = choose_number(options.gpus, "GPUs of each node", usual)
    if nodes < 1:
        raise _NotGivenError("--nodes 0: a run has a node at least")
    volume = options.volume or ""
    if name == "runpod" and not options.agent_url and not volume:
        what = "id of a network volume that has the one file as pod-agent"
        volume = choose(None, what, "none")
        if volume == "none":
            raise _NotGivenError(
                "runpod: where do pods find the one file? On a network volume (--volume ID), or"
                " --agent-url URL --sha256 DIGEST; dist/SHA256SUMS has the digest"
            )
    if options.agent_url and not options.sha256:
        raise _NotGivenError("--agent-url wants --sha256 DIGEST: it is in dist/SHA256SUMS")
    files = platform.render(
        Request(
            *(recipe, nodes, gpus, variant),
            image=options.image or "",
            agent=options.agent,
            url=options.agent_url,
            sha256=options.sha256,
            volume=volume,
        )
    )
    if name == "runpod" and variant == "pods":
        text = PODS.read_text(encoding="utf-8")
        files.append(StartFile("pods.py", text, (), is_program=True))
    return files
