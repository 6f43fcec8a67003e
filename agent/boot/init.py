"""`pod-agent init`: asks for what is not given, and writes the start file of a platform."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.boot.recipe_verb import recipe_name
from agent.work.start_files import platforms
from agent.work.start_files.request import PRESETS, Request, StartFile

if TYPE_CHECKING:
    from collections.abc import Sequence

Render = Callable[[Request], list[StartFile]]
PODS = Path(__file__).parents[1] / "bundled" / "runpod_pods.py"
"""The program that creates RunPod's pods from a template."""


class Platform(Value, frozen=True):
    """A platform of `init`."""

    render: Render
    recipe: str = "verl-grpo"
    """What is trained unless the user says otherwise."""
    nodes: int = 2
    rehearsal_gpus: int = 1
    """The rehearsal uses none, but some platforms rent only nodes with GPUs."""
    flag: str = ""
    """The flag that chooses among `variants`; the first is the default."""
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    add = parser.add_argument
    add("platform", metavar="PLATFORM", nargs="?", type=_platform_name, help=_list(PLATFORMS))
    add("recipe", metavar="RECIPE", nargs="?", type=recipe_name, help="see `recipes`")
    add("--nodes", type=_number, metavar="N", help="nodes, the head among them")
    add("--gpus", type=_number, metavar="G", help="GPUs of each node")
    containers = PLATFORMS["slurm"].variants
    add("--container", choices=containers, help="Slurm: what the job runs in")
    kinds = (*PLATFORMS["kubernetes"].variants, *PLATFORMS["runpod"].variants)
    add("--kind", choices=kinds, metavar="KIND", help=f"Kubernetes and RunPod: {_list(kinds)}")
    add("--volume", metavar="ID", help="RunPod: network volume that has the one file")
    add("--image", metavar="IMAGE", help="another image than the recipe's usual one")
    add("--agent", metavar="PATH", default="", help="where the one file is; default: usual place")
    add("--agent-url", metavar="URL", default="", help="nodes fetch the one file from there")
    add("--sha256", metavar="DIGEST", default="", help="its digest, with --agent-url")
    add("--to", type=Path, default=Path(), metavar="FOLDER", help="where to write; default: here")
    add("--force", action="store_true", help="overwrite files that exist")


def _list(names: Sequence[str] | dict[str, Platform]) -> str:
    return ", ".join(names)


def _platform_name(text: str) -> str:
    if text in PLATFORMS:
        return text
    close = difflib.get_close_matches(text, PLATFORMS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are {_list(PLATFORMS)}"
    raise argparse.ArgumentTypeError(f"no platform {text!r}: {hint}")


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) > 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 10000")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Write the start files; return 0, or 2 where something is not given or would be lost."""
    ask = _Prompt(is_possible=sys.stdin.isatty() and sys.stderr.isatty())
    try:
        files = start_files(options, ask)
    except _NotGivenError as error:
        print(f"pod-agent init: error: {error}", file=sys.stderr)
        return 2
    targets = [options.to / file.name for file in files]
    if there := [str(target) for target in targets if target.exists() and not options.force]:
        remedy = "Move it away, choose --to FOLDER, or add --force"
        print(f"pod-agent init: error: {', '.join(there)} exists. {remedy}", file=sys.stderr)
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


class _Prompt(Value, frozen=True):
    """Asks at a terminal; elsewhere takes the default."""

    is_possible: bool

    def one_of(self, what: str, names: Sequence[str], default: str) -> str:
        """Return a name that was chosen by name or number."""
        if not self.is_possible:
            return default
        shown = "  ".join(f"{number} {name}" for number, name in enumerate(names, 1))
        while True:
            answer = self._answer(f"{what}: {shown} [{default}] ") or default
            if answer.isdecimal() and 1 <= int(answer) <= len(names):
                return names[int(answer) - 1]
            if answer in names:
                return answer

    def number(self, what: str, default: int) -> int:
        """Return a whole number."""
        while self.is_possible:
            answer = self._answer(f"{what} [{default}] ") or str(default)
            if answer.isdecimal():
                return int(answer)
        return default

    def text(self, what: str) -> str:
        """Return a text, perhaps ''."""
        return self._answer(f"{what} [none] ") if self.is_possible else ""

    def _answer(self, question: str) -> str:
        print(question, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise _NotGivenError("the input has ended")
        return line.strip()


def start_files(options: argparse.Namespace, ask: _Prompt) -> list[StartFile]:
    """Complete the request, and make the files."""
    name = options.platform
    if name is None:
        if not ask.is_possible:
            raise _NotGivenError(f"which platform? One of {_list(PLATFORMS)}")
        name = ask.one_of("platform", tuple(PLATFORMS), "slurm")
    platform = PLATFORMS[name]
    recipe = options.recipe or ask.one_of("recipe", tuple(PRESETS), platform.recipe)
    variant = _variant(name, platform, options, ask)
    nodes, gpus = options.nodes, options.gpus
    if nodes is None:
        nodes = ask.number("nodes", platform.nodes)
    if gpus is None:
        usual = platform.rehearsal_gpus if recipe == "rehearsal" else 8
        gpus = ask.number("GPUs of each node", usual)
    if nodes < 1:
        raise _NotGivenError("--nodes 0: a run has a node at least")
    volume = options.volume or ""
    if name == "runpod" and not options.agent_url:
        volume = volume or ask.text("id of a network volume that has the one file as pod-agent")
        if not volume:
            raise _NotGivenError(
                "runpod: where do pods find the one file? On a network volume (--volume ID), or"
                " --agent-url URL --sha256 DIGEST; dist/SHA256SUMS has the digest"
            )
    if options.agent_url and not options.sha256:
        raise _NotGivenError("--agent-url wants --sha256 DIGEST: it is in dist/SHA256SUMS")
    request = Request(
        recipe=recipe,
        nodes=nodes,
        gpus=gpus,
        variant=variant,
        image=options.image or "",
        agent=options.agent,
        url=options.agent_url,
        sha256=options.sha256,
        volume=volume,
    )
    files = platform.render(request)
    if name == "runpod" and variant == "pods":
        text = PODS.read_text(encoding="utf-8")
        files.append(StartFile("pods.py", text, (), is_program=True))
    return files


def _variant(name: str, platform: Platform, options: argparse.Namespace, ask: _Prompt) -> str:
    """Return the chosen container or kind."""
    for flag in ("container", "kind"):
        given = getattr(options, flag)
        if given is not None and (flag != platform.flag or given not in platform.variants):
            fits = (
                f"--{platform.flag} {' or '.join(platform.variants)}" if platform.flag else "none"
            )
            raise _NotGivenError(f"{name} has no --{flag} {given}; it takes {fits}")
    if not platform.flag:
        return ""
    given = getattr(options, platform.flag)
    return str(given or ask.one_of(platform.flag, platform.variants, platform.variants[0]))
