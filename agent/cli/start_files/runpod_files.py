"""The start files of RunPod: what asks for pods or a cluster, and what makes them."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base import times
from agent.base.text import duration_text
from agent.cli.start_files.platform_files import (
    SERVICES,
    packing_files,
    secret_names,
    sent_files,
    services_files,
    start_commands,
)
from agent.cli.start_files.request import (
    Folders,
    ModelPlace,
    Request,
    StartFile,
    StartFiles,
    checkpoints_of,
    job_variables,
    text_file,
)
from agent.cli.start_files.runpod_gpus import MOST_GPUS
from agent.cli.start_files.template_text import fill
from agent.node.code_archive import ARCHIVE

if TYPE_CHECKING:
    from agent.cli.start_files.agent_file import AgentFile

_SLOW = (
    "RunPod's Global Networking, which connects pods, has 100 Mbps: weights of 7B take 20 minutes"
    " a sync. For more than small models: "
)
_CLUSTER = "an Instant Cluster (--kind cluster)"
_KEPT = "/workspace/pod-agent"
"""Where a pod keeps what it was sent: on the disk that outlives a restart."""
_BUNDLED = Path(__file__).parents[2] / "bundled"
_GPU = "NVIDIA H100 80GB HBM3"
_GPU_OF_REHEARSAL = "NVIDIA GeForce RTX 4090"  # Global Networking has none without a GPU
_CENTER = "EU-RO-1"  # Has Global Networking
_RECEIVE = "RECEIVE_AGENT"
_CODE_SIZE = "CODE_SIZE"
_CODE_DIGEST = "CODE_SHA256"
"""Variables of the archive of a command's code; pods.py sets them, since it packs it again."""
_RECEIVE_PORT = 8266  # The agent's own, which templates/runpod.json opens
_SERVICES = "SERVICES_TOML"
_CONSOLE = "https://console.runpod.io/user/settings"


def runpod(request: Request) -> StartFiles:
    """Return the request for pods or an Instant Cluster, the program that makes them, the agent."""
    is_cluster = request.variant == "cluster"
    is_networked = not is_cluster and request.nodes > 1
    folders = Folders(
        data="/workspace/data",
        code="/workspace" if request.volume else "/opt",
        checkpoints="/workspace/checkpoints",
        logs="/workspace/agent-logs",
        models="/workspace/huggingface",
        is_shared=bool(request.volume),
        services=f"/root/{SERVICES}",
        archive=f"{_KEPT}/${_CODE_DIGEST}",
    )
    variables = job_variables(request, folders, restarted=True)

    # The container's command: receive the agent, install what the image lacks, become the agent.
    place = _place(request.agent)
    commands = start_commands(request, folders, place)
    awaited = []
    if request.agent.is_sent:
        awaited.append(f"{len(request.agent.content)} {request.agent.digest} {place}")
    if request.code is not None:
        archive = request.code.archive
        awaited.append(f"${_CODE_SIZE} ${_CODE_DIGEST} {folders.archive}/{ARCHIVE}")
        variables[_CODE_SIZE] = str(len(archive))
        variables[_CODE_DIGEST] = hashlib.sha256(archive).hexdigest()
    if awaited:
        receive = f'python3 -c "${_RECEIVE}" {_RECEIVE_PORT} {" ".join(awaited)}'
        commands.insert(0, receive)
        program = (_BUNDLED / "runpod_receive.py").read_text(encoding="utf-8")
        variables[_RECEIVE] = program
    services = services_files(request, folders)
    if services:
        commands.insert(0, f"printenv {_SERVICES} > {folders.services}")
        variables[_SERVICES] = services[0].text

    # The request, and the program that sends it.
    on_done, api_key = _on_done(request)
    usual_gpu = _GPU_OF_REHEARSAL if request.is_rehearsal else _GPU
    text = fill(
        "runpod.json",
        request,
        quoted_image=json.dumps(request.container_image),
        gpu=json.dumps(request.gpu_type or usual_gpu),
        center=json.dumps(_center(request)) if _center(request) else "",
        command=json.dumps(f"bash -c {shlex.quote(' && '.join(commands))}", ensure_ascii=False),
        variables=",\n".join(
            f"{json.dumps(name)}: {json.dumps(value)}" for name, value in variables.items()
        ),
        volume=json.dumps(request.volume) if request.volume else "",
        persistent=not request.volume,
        networked=is_networked,
        on_done=on_done,
        api_key=api_key,
        pods=not is_cluster,
        cluster=is_cluster,
    )
    name = "instant-cluster.json" if is_cluster else "pod.json"
    maker = StartFile("pods.py", (_BUNDLED / "runpod_pods.py").read_bytes(), is_program=True)

    # What the program asks for and makes.
    secrets = ["ray_auth_token", *(secret.lower() for secret in secret_names(request))]
    comments = []
    if api_key:
        secrets.append("runpod_api_key")
        comments = ["# runpod_api_key gets that key, with which the head deletes the cluster"]
    made = "the cluster" if is_cluster else "the pods"
    missing = f"the secrets that are missing ({', '.join(secrets)})"
    asked = f"# asks for an API key ({_CONSOLE}), makes {missing} and {made}"
    steps = (asked, *comments, "python3 pods.py")

    notes = [_SLOW + _instead(request)] if is_networked else []
    model = _model(request, checkpoints_of(request, folders), is_cluster=is_cluster)
    sent = (*sent_files(request), *packing_files(request))
    data = variables.get("AGENT_TRAIN_DATA", "")
    return StartFiles((text_file(name, text), maker, *sent), steps, model, tuple(notes), data)


def _instead(request: Request) -> str:
    """Return what to rent instead of pods that a slow network connects."""
    total = request.nodes * request.gpus
    if total > MOST_GPUS:
        return _CLUSTER
    return f"one pod with as many GPUs (--nodes 1 --gpus {total}), or {_CLUSTER}"


def _model(request: Request, folder: str, *, is_cluster: bool) -> ModelPlace:
    """Return the place on the volume, or on the disks of the pods."""
    send = f"runpodctl send {folder}"
    receive = "runpodctl receive CODE   # here, with the code that it prints"
    if request.volume:
        where = f"{folder} on the network volume {request.volume}"
        return ModelPlace(where, (f"{send}   # in a pod with that volume", receive))
    if is_cluster:
        return ModelPlace(
            f"{folder} in the pods",
            (f"{send}   # in the head's pod, which is held after the run", receive),
            "The pods have the only copy, and bill until you delete the cluster, which deletes it:"
            " copy it before, or add --volume ID",
        )
    stays = duration_text(times.STARTED_AGAIN)
    return ModelPlace(
        f"{folder} on the disk of each pod",
        (
            f"{send}   # in the head's pod: start it in the console, it stays up for {stays}",
            receive,
        ),
        "The pods are stopped after the run, and have the only copy: it is deleted with them. Add"
        " --volume ID to keep it",
    )


def _place(agent: AgentFile) -> str:
    """Return where a pod keeps the agent's file."""
    return agent.place or f"{_KEPT}/{agent.digest[:12]}/{agent.name}"


def _center(request: Request) -> str:
    """Return the data center; only Global Networking needs one to be named."""
    if request.center or request.variant == "cluster" or request.nodes == 1:
        return request.center
    return _CENTER


def _on_done(request: Request) -> tuple[str, bool]:
    """Return AGENT_ON_DONE, and whether it needs a key of the account."""
    if request.variant != "cluster":
        return "stop-pod", False  # with the key that RunPod sets on every pod; its volume stays
    return ("terminate-pod", True) if request.volume else ("hold", False)
