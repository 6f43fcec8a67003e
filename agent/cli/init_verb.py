"""`pod-agent init`: asks for what is not given, and writes the start file of a platform."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.cli.options import flag, name_among, value, whole_number
from agent.cli.start_files import platform_files
from agent.cli.start_files.request import Request, StartFile, presets
from agent.settings.jobs import BY_NAME

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

_PODS = Path(__file__).parents[1] / "bundled" / "runpod_pods.py"
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
_CONTAINERS = PLATFORMS["slurm"].variants
_KINDS = (*PLATFORMS["kubernetes"].variants, *PLATFORMS["runpod"].variants)
OPTIONS = (
    value(
        "platform", "PLATFORM", ", ".join(PLATFORMS), name_among("platform", PLATFORMS), nargs="?"
    ),
    value("recipe", "RECIPE", "see `recipes`", name_among("recipe", BY_NAME), nargs="?"),
    value("--nodes", "N", "nodes, the head among them", whole_number),
    value("--gpus", "G", "GPUs of each node", whole_number),
    value("--container", None, "Slurm: what the job runs in", choices=_CONTAINERS),
    value("--kind", "KIND", f"Kubernetes and RunPod: {', '.join(_KINDS)}", choices=_KINDS),
    value("--volume", "ID", "RunPod: network volume that has the one file"),
    value("--image", "IMAGE", "another image than the recipe's usual one"),
    value("--agent", "PATH", "where the one file is; default: usual place", default=""),
    value("--agent-url", "URL", "nodes fetch the one file from there", default=""),
    value("--sha256", "DIGEST", "its digest, with --agent-url", default=""),
    value("--to", "FOLDER", "where to write; default: here", Path, default=Path()),
    flag("--force", "overwrite files that exist"),
)


def run(_: Mapping[str, str], options: argparse.Namespace) -> int:
    """Write the start files; return 0, or 2 where something is not given or would be lost."""
    try:
        files = _start_files(options, may_ask=sys.stdin.isatty() and sys.stderr.isatty())
    except _NotGivenError as error:
        print(f"pod-agent init: error: {error}", file=sys.stderr)
        return 2

    options.to.mkdir(parents=True, exist_ok=True)
    for file in files:
        target = options.to / file.name
        target.write_bytes(file.text.encode())  # Linux reads it: no line ends of Windows
        if file.is_program:
            target.chmod(0o755)
        print(f"wrote {target}")
    print("Check its first values, or those marked `change`, and model and data in it. Then:")
    print("\n".join(f"  {step}" for step in files[0].next_steps))
    return 0


class _NotGivenError(Exception):
    """Something is missing, or does not fit."""


def _start_files(options: argparse.Namespace, *, may_ask: bool) -> list[StartFile]:
    """Return the files to write; raises if one of them exists."""
    if options.platform is None and not may_ask:
        raise _NotGivenError(f"which platform? One of {', '.join(PLATFORMS)}")
    name = _choose(options.platform, "platform", "slurm", (*PLATFORMS,), may_ask=may_ask)
    platform = PLATFORMS[name]
    request = _request(options, name, platform, may_ask=may_ask)

    files = platform.render(request)
    if name == "runpod" and request.variant == "pods":
        text = _PODS.read_text(encoding="utf-8")
        files.append(StartFile("pods.py", text, (), is_program=True))

    existing = [file.name for file in files if (options.to / file.name).exists()]
    if existing and not options.force:
        remedy = "Move it away, choose --to FOLDER, or add --force"
        raise _NotGivenError(f"{', '.join(existing)} exists. {remedy}")
    return files


def _request(
    options: argparse.Namespace, name: str, platform: Platform, *, may_ask: bool
) -> Request:
    """Return what the files are wanted for: options, else answers, else defaults."""
    recipe = _choose(options.recipe, "recipe", platform.recipe, (*presets(),), may_ask=may_ask)

    # Which container or kind?
    given = options.container or options.kind
    if given is not None and given not in platform.variants:
        takes = "none"
        if platform.flag:
            takes = f"--{platform.flag} {' or '.join(platform.variants)}"
        raise _NotGivenError(f"{name} has no {given}; it takes {takes}")
    variant = platform.variants[0]
    if platform.flag:
        variant = _choose(given, platform.flag, variant, platform.variants, may_ask=may_ask)

    # How many nodes, of which size?
    nodes = _choose_number(options.nodes, "nodes", 2, may_ask=may_ask)
    usual_gpus = platform.rehearsal_gpus if recipe == "rehearsal" else 8
    gpus = _choose_number(options.gpus, "GPUs of each node", usual_gpus, may_ask=may_ask)
    if nodes < 1:
        raise _NotGivenError("--nodes 0: a run has a node at least")

    # Where do the nodes find the one file?
    volume = options.volume
    if name == "runpod" and not options.agent_url:
        what = "id of a network volume that has the one file as pod-agent"
        volume = _choose(volume, what, "", may_ask=may_ask)
        if not volume:
            raise _NotGivenError(
                "runpod: where do pods find the one file? On a network volume (--volume ID), or"
                " --agent-url URL --sha256 DIGEST; dist/SHA256SUMS has the digest"
            )
    if options.agent_url and not options.sha256:
        raise _NotGivenError("--agent-url wants --sha256 DIGEST: it is in dist/SHA256SUMS")

    return Request(
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


def _choose(
    given: object, what: str, default: str, names: Sequence[str] = (), *, may_ask: bool
) -> str:
    """Return what is given, else the answer of a user who can be asked, else the default."""
    if given is not None:
        return str(given)
    return _ask(what, default, names) if may_ask else default


def _choose_number(given: int | None, what: str, default: int, *, may_ask: bool) -> int:
    answer = _choose(given, what, str(default), may_ask=may_ask)
    if not answer.isdecimal():
        raise _NotGivenError(f"{what}: {answer!r} is no number")
    return int(answer)


def _ask(what: str, default: str, names: Sequence[str] = ()) -> str:
    """Ask for one of some names, or for any text; '' takes the default."""
    choices = f": {', '.join(names)}" if names else ""
    while True:
        print(f"{what}{choices} [{default}] ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise _NotGivenError("the input has ended")
        answer = line.strip() or default
        if not names or answer in names:
            return answer
