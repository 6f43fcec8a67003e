"""The start files of Kubernetes and KubeRay: the job's manifest, and the disk of its pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent.cli.start_files.agent_file import HOME
from agent.cli.start_files.platform_files import (
    RANDOM,
    SERVICES,
    packing_files,
    sent_files,
    services_text,
    start_commands,
)
from agent.cli.start_files.request import (
    Folders,
    ModelPlace,
    Request,
    StartFile,
    StartFiles,
    checkout_commands,
    checkpoints_of,
    enter_commands,
    job_variables,
    packed_again,
    text_file,
    unpack_commands,
)
from agent.cli.start_files.template_text import fill, yaml_env
from agent.node.code_archive import ARCHIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SHARED = "/workspace"
_CLAIM = "rl-workspace"
_FILES_POD = "rl-files"
_WORKSPACE = "workspace.yaml"
_ONCE = "once.sh"
_SERVICES = f"/etc/pod-agent/{SERVICES}"
_CPUS_OF_GPU = 8
_MEMORY_OF_GPU = 64  # GiB
_RAY_IMAGE = "rayproject/ray:2.52.0-py311"
"""For the rehearsal: the operator needs Ray in the image."""
MANIFESTS = {
    "lws": ("lws.yaml", "agent"),
    "trainjob": ("kubeflow-trainjob.yaml", "node"),
    "pytorchjob": ("pytorchjob.yaml", "pytorch"),
}
"""By kind: the file, and the name of its containers."""
_HEADS = {
    "lws": "{job}-0",
    "trainjob": (
        "-l jobset.sigs.k8s.io/jobset-name={job},batch.kubernetes.io/job-completion-index=0"
        " --tail=-1"
    ),
    "pytorchjob": "{job}-master-0",
    "rayjob": "job/{job}",
}
"""By kind: the pod whose log says all about the run, as `kubectl logs` takes it."""


def _in_workspace(code: str, own_code: str = "/opt/code") -> Folders:
    """Return the folders on a claim that every pod mounts."""
    return Folders(
        data=f"{_SHARED}/data",
        code=code,
        checkpoints=f"{_SHARED}/checkpoints",
        logs=f"{_SHARED}/agent-logs",
        models=f"{_SHARED}/huggingface",
        services=_SERVICES,
        archive=_SHARED,
        own_code=own_code,
    )


def kubernetes(request: Request) -> StartFiles:
    """Return the manifest of a LeaderWorkerSet, a TrainJob or a PyTorchJob."""
    kind = request.variant
    folders = _in_workspace("/opt")
    name, container = MANIFESTS[kind]
    place = _place(request)

    # A LeaderWorkerSet starts its pods anew after every end: the pod is held.
    is_restarted = kind == "lws"
    variables = {
        "AGENT_STOP_GRACE": "90s",
        "AGENT_WAIT_HEAD": "60m",
        "AGENT_WAIT_WORKERS": "60m",
    }
    if is_restarted:
        variables["AGENT_ON_DONE"] = "hold"
    variables |= job_variables(request, folders, restarted=is_restarted)

    # The pod, alike in all kinds and groups, and the manifest around it.
    resources = "cpu: 8, memory: 32Gi"
    if request.gpus:
        resources = f"nvidia.com/gpu: {request.gpus}"
    services = services_text(request, folders)

    def pod(variables: Mapping[str, str], node_label: str = "", *, leads: bool = True) -> str:
        key, _, text = node_label.partition("=")
        return fill(
            "kubernetes_pod.yaml",
            request,
            container=container,
            resources=f"{{limits: {{{resources}}}}}",
            shared_memory="128Gi" if request.gpus else "8Gi",
            before=f"the claim of {_WORKSPACE} with the agent's file, and the secret `pod-agent`",
            claim=_claim(request),
            commands="\n".join(start_commands(request, folders, place)),
            variables=yaml_env(variables, 6),
            services=bool(services),
            leads=leads,
            node_label=key,
            node_value=text,
            **{known: known == kind for known in MANIFESTS},
        )

    if kind == "lws" and request.groups:
        text = _leader_worker_sets(request, variables, pod)
    else:
        text = fill(f"kubernetes_{kind}.yaml", request, pod=pod(variables))
    if services:
        text += fill("kubernetes_services.yaml", request, services=services)

    once = _once(request, needs_token=True)
    steps = [*_steps(request, once, f"kubectl apply -f {name}"), _log(request, kind)]
    if is_restarted:
        steps.append(
            f"kubectl delete -f {name}   # after the run: a LeaderWorkerSet keeps its GPUs"
        )
    files = (text_file(name, text), once.file, *_shared_files(request))
    data = variables.get("AGENT_TRAIN_DATA", "")
    return StartFiles(files, tuple(steps), _model(request, folders), train_data=data)


def _leader_worker_sets(
    request: Request, variables: Mapping[str, str], pod: Callable[..., str]
) -> str:
    """Return a LeaderWorkerSet of the trainer, and for each group one whose pods stand alone.

    LWS counts ranks within each, and starts a pod of a group again without the others.
    """
    head = f"{request.job}-0.{request.job}"  # of the headless service that LWS makes
    own = {"EXPECTED_WORKERS": str(request.nodes - 1), **variables}
    (trainer, trainers), *groups = request.parts
    trains = pod({"AGENT_GROUP": trainer, **own})
    manifests = [fill("kubernetes_lws.yaml", request, nodes=trainers, pod=trains)]
    for group, nodes in groups:
        generates = pod(
            {"AGENT_GROUP": group, "AGENT_HEAD": head, **own}, request.group_nodes, leads=False
        )
        name = f"{request.job}-{group.lower()}"
        manifests.append(
            fill("kubernetes_lws_group.yaml", request, name=name, nodes=nodes, pod=generates)
        )
    return "".join(manifests)


def kuberay(request: Request) -> StartFiles:
    """Return a RayJob, whose submitter is the agent."""
    folders = _in_workspace(_SHARED, "/tmp/code")  # an image's user may not be root
    place = _place(request)

    # Some variables are those of the cluster's pods, all others of the submitter.
    variables = job_variables(request, folders, restarted=False)
    names = [name for name in ("HF_HOME", "PYTHONPATH") if name in variables]
    cluster: dict[str, str] = {name: variables.pop(name) for name in names}
    if request.command:
        cluster["AGENT_CHECKPOINTS"] = variables["AGENT_CHECKPOINTS"]  # the job reads it there
    own = {"EXPECTED_WORKERS": str(request.nodes - 1), "AGENT_STOP_GRACE": "90s"}
    if request.code is not None:
        own["AGENT_WORKING_DIR"] = folders.own_code  # Ray sends it to the cluster's pods

    # The agent is installed, or unpacked, before Ray starts.
    agent = request.agent
    is_wheel = agent.kind == "wheel"
    install = agent.commands(place, is_linked=False)
    if not is_wheel:
        install.append(f"{agent.start(place)} --version")

    # The size of a pod, by which the operator sizes Ray; and its image.
    resources = "cpu: 8, memory: 32Gi"
    if request.gpus:
        cpus = _CPUS_OF_GPU * request.gpus
        memory = _MEMORY_OF_GPU * request.gpus
        resources = f"cpu: {cpus}, memory: {memory}Gi, nvidia.com/gpu: {request.gpus}"
    image = request.image
    if request.is_rehearsal and not image:
        image = _RAY_IMAGE
    text = fill(
        "kuberay.yaml",
        request,
        image=image or request.container_image,
        as_root=image == _RAY_IMAGE,
        size=f"{{limits: {{{resources}}}}}",
        shared_memory="128Gi" if request.gpus else "8Gi",
        cluster_env=yaml_env(cluster or {"HF_HOME": folders.models}, 18),
        env=yaml_env({**own, **variables}, 12),
        home=HOME if is_wheel else "/tmp",
        claim=_claim(request),
        install="\n".join(install),
        commands="\n".join(
            [
                *checkout_commands(request, folders),
                *unpack_commands(request, folders),
                *enter_commands(request, folders),
                f"exec {agent.start(place)} {request.words}",
            ]
        ),
    )
    once = _once(request, needs_token=False)
    steps = [*_steps(request, once, "kubectl create -f rayjob.yaml"), _log(request, "rayjob")]
    files = (text_file("rayjob.yaml", text), once.file, *_shared_files(request))
    data = variables.get("AGENT_TRAIN_DATA", "")
    return StartFiles(files, tuple(steps), _model(request, folders), train_data=data)


def _place(request: Request) -> str:
    """Return where the agent's file is: on the claim."""
    return f"{_SHARED}/{request.agent.name}"


def _claim(request: Request) -> str:
    return request.volume or _CLAIM


def _shared_files(request: Request) -> list[StartFile]:
    """Return the manifest of the shared disk, and the agent's file for it."""
    claim = _claim(request)
    text = fill("kubernetes_workspace.yaml", request, claim=claim, makes_claim=not request.volume)
    return [text_file(_WORKSPACE, text), *sent_files(request), *packing_files(request)]


def _log(request: Request, kind: str) -> str:
    """Return the command that follows the run, once its pods are there."""
    head = _HEADS[kind].format(job=request.job)
    return f"kubectl logs -f {head}   # once it runs; its `watch` line opens the page"


def _model(request: Request, folders: Folders) -> ModelPlace:
    folder = checkpoints_of(request, folders)
    get = f"kubectl cp {_FILES_POD}:{folder} {request.job}"
    return ModelPlace(f"{folder} on the claim {_claim(request)}", (get,))


class _Once(NamedTuple):
    """The program to run once before the first run, and what it makes, in words."""

    file: StartFile
    made: str


def _once(request: Request, *, needs_token: bool) -> _Once:
    """Return the program that makes the disk and the secret, and copies the agent's file."""
    # The secret, of which each key is optional but the token.
    keys = {"wandb-api-key": "WANDB_API_KEY", "hf-token": "HF_TOKEN"}
    wanted = {"WANDB_API_KEY": request.has_wandb, "HF_TOKEN": request.has_hf_token}
    literals = [f'--from-literal=ray-auth-token="{RANDOM}"'] if needs_token else []
    literals += [f'--from-literal={key}="${name}"' for key, name in keys.items() if wanted[name]]

    remedy = "Have one made, or let init take a claim that exists: --volume CLAIM"
    if request.volume:
        remedy = "Is it the name of a claim in this namespace?"
    agent_file = request.agent.name if request.agent.is_sent else ""
    made = [
        "a pod to copy files" if request.volume else "the disk",
        "the secret" if literals else "",
        "the agent's file" if agent_file else "",
    ]
    once = ", ".join(filter(None, made))
    text = fill(
        "kubernetes_once.sh",
        request,
        claim=_claim(request),
        made=once,
        literals=" ".join(literals),
        remedy=remedy,
        agent_file=agent_file,
        again=", and the agent's file is copied anew" if agent_file else "",
    )
    return _Once(text_file(_ONCE, text, is_program=True), once)


def _steps(request: Request, once: _Once, start: str) -> list[str]:
    """Return the commands up to the one that starts the run."""
    copied = ""
    if request.code is not None:
        copied = f"kubectl cp {ARCHIVE} {_FILES_POD}:{_SHARED}/{ARCHIVE} && "
    return [
        f"bash {_ONCE}   # once: {once.made}",
        f"{packed_again(request)}{copied}{start}",
    ]
