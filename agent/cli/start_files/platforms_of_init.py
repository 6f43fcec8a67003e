"""The platforms of `init`: what makes their files, their options, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable

from agent.base.value import Value
from agent.cli.start_files import (
    kubernetes_files,
    platform_files,
    runpod_files,
    slurm_files,
)
from agent.cli.start_files.request import (
    Request,
    StartFiles,
    brings_services,
    preset_of,
    runs_by_torchrun,
)

_BY_PIP = (
    "a wheel of 1 MB, which each node installs by pip into an environment of its own, beside the"
    " image's packages: the image has pip, and the nodes reach an index. Where they reach none:"
    " `init` with --agent dist/pod-agent, the one file."
)
_ON_SHARED_DISK = (
    "the one file, on the disk that all nodes share: it needs neither pip nor an index, which the"
    " nodes of many clusters do not reach."
)


_BY_FETCH = (
    "a wheel of 1 MB, which fetch.sh installs by pip into pod-agent-venv/, on the disk that all"
    " nodes share, beside the packages of the framework's Python: the nodes need no index."
)


class Platform(Value, frozen=True):
    """A platform of `init`."""

    render: Callable[[Request], StartFiles]
    why_wheel: str = _BY_PIP
    why_one_file: str = ""  # Set where a one file that is here is preferred to a wheel
    rehearsal_gpus: int = 0  # The rehearsal uses none, but some platforms rent only GPUs
    flag: str = ""  # The flag that chooses among `variants`; the first is the default
    variants: tuple[str, ...] = ("",)
    takes: tuple[str, ...] = ()  # Its own options
    asks_volume: str = ""  # What is asked for at a terminal where a run's disks end with it


PLATFORMS = {
    "slurm": Platform(
        slurm_files.slurm,
        why_wheel=_BY_FETCH,
        why_one_file=_ON_SHARED_DISK,
        flag="container",
        variants=("none", "apptainer", "pyxis", "podman"),
        takes=(
            *("container", "partition", "account", "time", "python", "image"),
            *("services", "group_nodes"),
        ),
    ),
    "runpod": Platform(
        runpod_files.runpod,
        rehearsal_gpus=1,
        flag="kind",
        variants=("pods", "cluster"),
        takes=("kind", "gpu_type", "center", "volume", "image", "wandb", "hf_token", "services"),
        asks_volume="id of a network volume",
    ),
    "dstack": Platform(
        platform_files.dstack,
        takes=(
            *("gpu_type", "center", "volume", "fleet", "image"),
            *("spot", "wandb", "hf_token", "services"),
        ),
        asks_volume="name of a network volume",
    ),
    "skypilot": Platform(
        platform_files.skypilot,
        takes=(
            *("gpu_type", "center", "volume", "image", "spot", "wandb", "hf_token"),
            "services",
        ),
        asks_volume="a bucket such as s3://mine",
    ),
    "kubernetes": Platform(
        kubernetes_files.kubernetes,
        flag="kind",
        variants=("lws", "trainjob", "pytorchjob"),
        takes=("kind", "volume", "image", "wandb", "hf_token", "services", "group_nodes"),
    ),
    "kuberay": Platform(kubernetes_files.kuberay, takes=("volume", "image", "wandb", "hf_token")),
    "ssh": Platform(platform_files.ssh, takes=("hosts", "image", "wandb", "hf_token", "services")),
}


def default_variant(platform: str, job: str, nodes: int, gpus: int) -> str:
    """Return the container or kind that is taken unless the user says otherwise."""
    if platform == "runpod" and nodes > 1 and gpus == 8 and job != "rehearsal":
        return "cluster"  # pods among themselves have 100 Mbps
    return PLATFORMS[platform].variants[0]


def misfit(platform: str, variant: str, job: str, nodes: int) -> str:
    """Return why a job cannot run there, with the remedy; '' if it can."""
    preset = preset_of(job)
    if platform == "kuberay":
        needs = ""
        if runs_by_torchrun(job):
            needs = "runs on every node without Ray"
        elif preset.services:
            needs = "has a service on every node"
        elif brings_services(job):
            needs = "has services on nodes of their own"
        if needs:
            return (
                f"{job} {needs}, and on KubeRay the operator runs the nodes:"
                f" pod-agent init kubernetes {job}"
            )
    if platform == "slurm" and variant == "none" and preset.code:
        return f"{job} runs in {preset.code} of an image: --container apptainer, pyxis or podman"
    if variant == "cluster" and nodes == 1:
        return "an Instant Cluster has two pods at least: --kind pods"
    return ""


def missing_disk(platform: str, request: Request) -> str:
    """Return what to add where engines load weights from a disk that the nodes do not share."""
    has_disk = bool(request.volume or request.fleet) or not PLATFORMS[platform].asks_volume
    if has_disk or not request.shares_weights or request.nodes == 1:
        return ""
    what = "the engines load each new model from a disk that all nodes share"
    return f"{what}. Add --volume: {PLATFORMS[platform].asks_volume}"


def missing_image(platform: str, variant: str, job: str) -> str:
    """Return what an image needs, where none is known that has it; '' if there is one."""
    preset = preset_of(job)
    if platform == "slurm" and variant == "none":
        return ""
    if job == "command":
        return "what your command needs"
    if not preset.image:
        return preset.no_image

    # Does the recipe's usual image suffice there?
    if platform == "runpod" and preset.user:
        return f"{preset.imports}, and root as its user: RunPod's pods have the image's own"
    if platform == "kuberay" and preset.install and job != "rehearsal":
        return f"Ray and {preset.imports}, since the operator starts Ray in it"
    is_made_for_amd = preset.imports in {"verl", "ray"}
    if variant == "podman" and not is_made_for_amd:
        return f"{preset.imports}, for AMD GPUs"
    return ""


def missing_python(platform: str, variant: str, job: str) -> bool:
    """Return whether the user must name the framework's Python."""
    return platform == "slurm" and variant == "none" and job != "rehearsal"
