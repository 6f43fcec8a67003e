"""The start files of dstack, SkyPilot and of one's own machines, and what to type next."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from agent.cli.start_files.own_code import PACK
from agent.cli.start_files.request import (
    Folders,
    ModelPlace,
    Request,
    StartFile,
    StartFiles,
    checkpoints_of,
    enter_commands,
    job_variables,
    packed_again,
    setup_commands,
    text_file,
)
from agent.cli.start_files.template_text import fill, yaml_block
from agent.node.code_archive import ARCHIVE
from agent.settings.rules import TRAINER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

RANDOM = "$(openssl rand -hex 32)"
SERVICES = "services.toml"


def sent_files(request: Request) -> list[StartFile]:
    """Return what is sent along with the start file: the agent's file, and a command's code."""
    sent = []
    if request.agent.is_sent:
        is_program = request.agent.kind == "one file"
        sent.append(StartFile(request.agent.name, request.agent.content, is_program))
    if request.code is not None and request.code.archive:
        sent.append(StartFile(ARCHIVE, request.code.archive, is_made_again=True))
    return sent


def packing_files(request: Request) -> list[StartFile]:
    """Return the program that packs a command's code again."""
    if request.code is None:
        return []
    return [StartFile(PACK, request.code.packer(), is_program=True)]


def services_files(request: Request, folders: Folders) -> list[StartFile]:
    """Return the file for AGENT_SERVICES: the user's own, or the recipe's."""
    text = services_text(request, folders)
    return [text_file(SERVICES, text)] if text else []


def services_text(request: Request, folders: Folders) -> str:
    """Return the content of the file for AGENT_SERVICES; '' if there is none."""
    template = request.preset.services
    if request.services or not template:
        return request.services
    models = folders.models or "/root/.cache/huggingface"
    return fill(template, request, data=folders.data, models=models)


def start_commands(request: Request, folders: Folders, place: str) -> list[str]:
    """Return the shell commands of a container; the last one becomes the agent."""
    agent = request.agent
    return [
        *setup_commands(request, folders),
        *agent.commands(place),
        *enter_commands(request, folders),
        f"exec {agent.start(place)} {request.words}",
    ]


def secret_names(request: Request) -> list[str]:
    """Return the variables, but the token, that come from the platform's store of secrets."""
    wanted = {"WANDB_API_KEY": request.has_wandb, "HF_TOKEN": request.has_hf_token}
    return [name for name, is_wanted in wanted.items() if is_wanted]


# --- dstack ------------------------------------------------------------------------------------

_UPLOAD_LIMIT = 2 << 20  # What dstack's server takes, in bytes
_FLEET = "rl-fleet"
_GET = "get.dstack.yml"
_IDLE = "10m"
_IDLE_WITHOUT_VOLUME = "2h"
"""How long idle instances stay: without a volume they have the only copy of the checkpoints."""
_ON_DSTACK = Folders(
    data="/root/data",
    code="/opt",
    checkpoints="/checkpoints",
    logs="/checkpoints/agent-logs",
    models="/checkpoints/huggingface",
    is_shared=False,
    services=f"/opt/{SERVICES}",
    archive="/opt",
)


def dstack(request: Request) -> StartFiles:
    """Return a task of dstack, and its fleet and volume where they are to be made."""
    name = f"{request.job}.dstack.yml"
    place = f"/opt/{request.agent.name}"
    files = [*sent_files(request), *services_files(request, _ON_DSTACK)]
    resources = _dstack_resources(request)
    volume_line = f"{request.volume or '/checkpoints'}:/checkpoints"
    about_volume = "A folder of the instance, which outlives the run, but not the instance."
    if request.volume:
        about_volume = "The network volume, which outlives the instances."

    variables = job_variables(request, _ON_DSTACK, restarted=True)

    trainer, *groups = request.parts
    commands = start_commands(request, _ON_DSTACK, place)
    text = fill(
        "dstack.yml",
        request,
        alone=not groups,
        groups=bool(groups),
        trainers=trainer[1],
        others=_dstack_groups(groups),
        resources=resources,
        fleet=request.fleet or _FLEET,
        variables=yaml_block(variables, 2),
        sent="\n".join(f"- {file.name}:/opt/{file.name}" for file in files),
        commands=yaml_block(commands, 6 if groups else 2),
        about_volume=about_volume,
        volume=volume_line,
    )
    files = [text_file(name, text), *files, *packing_files(request)]
    steps = [f'dstack secret set ray_auth_token "{RANDOM}"']
    steps += [f'dstack secret set {secret.lower()} "${secret}"' for secret in secret_names(request)]

    # What the run needs and the user has not named.
    if not request.fleet:
        fleet = fill(
            "dstack_fleet.yml",
            request,
            fleet=_FLEET,
            resources=resources,
            idle=_IDLE if request.volume or request.is_rehearsal else _IDLE_WITHOUT_VOLUME,
            no_volume=not request.volume and not request.is_rehearsal,
        )
        files.append(text_file("fleet.dstack.yml", fleet))
        steps.append("dstack apply -y -f fleet.dstack.yml")
    if request.volume and request.center:
        backend, _, region = request.center.partition("/")
        volume = fill(
            "dstack_volume.yml",
            request,
            volume=request.volume,
            backend=backend,
            region=region,
        )
        files.append(text_file("volume.dstack.yml", volume))
        steps.append("dstack apply -y -f volume.dstack.yml")

    once = " && ".join(steps)
    steps = [f"{once}   # once", f"{packed_again(request)}dstack apply -f {name}"]

    # The way to the model, after the run.
    if not request.is_rehearsal:
        get = fill(
            "dstack_get.yml",
            request,
            get_nodes=1 if request.volume else request.nodes,
            fleet=request.fleet or _FLEET,
            resources=resources,
            checkpoints=checkpoints_of(request, _ON_DSTACK),
            no_volume=not request.volume,
            volume=volume_line,
        )
        files.append(text_file(_GET, get))
    data = variables.get("AGENT_TRAIN_DATA", "")
    notes = tuple(_dstack_notes(request))
    return StartFiles(tuple(files), tuple(steps), _model_on_dstack(request), notes, data)


def _dstack_notes(request: Request) -> Iterator[str]:
    """Yield what to know before the first step."""
    # A file above the server's limit is refused by it.
    smaller = {
        request.agent.name: "leave --agent out (a wheel of 1 MB)",
        ARCHIVE: "leave more out by .gitignore",
    }
    for file in sent_files(request):
        if len(file.content) > _UPLOAD_LIMIT:
            yield (
                f"dstack's server takes files of 2 MiB, and {file.name} is larger:"
                f" {smaller[file.name]}, or start the server with DSTACK_SERVER_CODE_UPLOAD_LIMIT=0"
            )
    if request.groups and request.is_spot:
        yield (
            "--spot is for the nodes of all groups: a task has one policy, and all its nodes are"
            " started anew when one is taken away"
        )
    if request.shares_weights and request.volume:
        yield (
            f"The engines load each new model from the volume {request.volume}, which all nodes"
            " mount at once: of dstack's backends runpod's volumes can be"
        )
    elif request.shares_weights:
        yield (
            "The engines load each new model from /checkpoints, which must be one folder of all"
            f" instances of the fleet {request.fleet} (NFS)"
        )
    if not request.volume:
        yield (
            "On the backends runpod and vastai instances have no folder that outlives a run: add"
            " --volume NAME (with --center BACKEND/REGION it is made)"
        )


def _model_on_dstack(request: Request) -> ModelPlace:
    folder = checkpoints_of(request, _ON_DSTACK)
    get = (
        f"dstack apply -y -f {_GET}   # and in another terminal, while it runs:",
        f"scp -r get-{request.job}:{folder} .",
    )
    if request.volume:
        return ModelPlace(f"{folder} on the volume {request.volume}", get)
    kept = f"{_IDLE_WITHOUT_VOLUME} after the run"
    if request.fleet:
        kept = f"once they have been idle as long as the fleet {request.fleet} says"
    return ModelPlace(
        f"{folder} on the instances",
        get,
        f"The instances have the only copy, and are given back {kept}: copy it before, or add"
        " --volume NAME",
    )


def _dstack_groups(groups: Iterable[tuple[str, int]]) -> str:
    """Return groups whose nodes run the trainer's commands on the trainer's kind of machine."""
    return "\n".join(
        f"- name: {name.lower()[:40]}\n  nodes: {nodes}\n  resources: *node\n  commands: *start"
        for name, nodes in groups
    )


def _dstack_resources(request: Request) -> str:
    if not request.gpus:
        return "cpu: 8..\nmemory: 32GB..\nshm_size: 8GB"
    return f"gpu: {request.gpu_type or '80GB'}:{request.gpus}\nshm_size: 128GB"


# --- SkyPilot ----------------------------------------------------------------------------------


def skypilot(request: Request) -> StartFiles:
    """Return a task of SkyPilot, or a job group of several; the agent's file is a file mount."""
    name = f"{request.job}.sky.yaml"
    place = f"/root/{request.agent.name}"
    disk = "/checkpoints" if request.volume else "/root"
    folders = Folders(
        data="/root/data",
        code="/root",
        checkpoints=f"{disk}/checkpoints",
        logs=f"{disk}/agent-logs",
        models="/root/huggingface",
        is_shared=False,
        services=f"/root/{SERVICES}",
        archive="/root",
    )
    variables = job_variables(request, folders, restarted=bool(request.volume))
    files = [*sent_files(request), *services_files(request, folders)]
    mounts: dict[str, object] = {f"/root/{file.name}": f"./{file.name}" for file in files}
    if "://" in request.volume:
        mounts["/checkpoints"] = {"source": request.volume, "mode": "MOUNT"}

    # Installed once, before `run`, which becomes the agent.
    *setup, start = start_commands(request, folders, place)
    enter = enter_commands(request, folders)
    setup = [command for command in setup if command not in enter]
    values = {
        "mounts": yaml_block(mounts, 2) if mounts else "",
        "volume": "" if "://" in request.volume else request.volume,
        "variables": yaml_block(variables, 2),
        "setup": "\n".join(setup),
        "run": "\n".join([*enter, start]),
    }
    is_group = _is_job_group(request)
    if is_group:
        text = _job_group(request, values)
    else:
        resources = _sky_resources(request, is_spot=request.is_spot)
        own = {"task": request.job, "group": "", "leads": True, "in_group": False}
        text = fill("skypilot.yaml", request, resources=resources, **own, **values)

    # A job group is a managed job, which gives its machines back.
    secrets = "".join(f" --secret {secret}" for secret in secret_names(request))
    model = _model_on_skypilot(request, checkpoints_of(request, folders))
    launch = f"sky launch -c {request.job} --secret RAY_AUTH_TOKEN{secrets} {name}"
    copy = ""
    if not request.volume and not request.is_rehearsal:
        copy = f"{model.get[0]} && "
    last = f"{copy}sky down {request.job}   # after the run: the cluster bills until then"
    if is_group:
        launch = f"sky jobs launch -y --secret RAY_AUTH_TOKEN{secrets} {name}"
        last = f"sky jobs cancel -y --name {request.job}   # to end it before its end"
    steps = (f"export RAY_AUTH_TOKEN={RANDOM}", f"{packed_again(request)}{launch}", last)
    files = [text_file(name, text), *files, *packing_files(request)]
    data = variables.get("AGENT_TRAIN_DATA", "")
    notes = tuple(_sky_notes(request))
    return StartFiles(tuple(files), steps, model, notes, data)


def on_kubernetes(infra: str) -> bool:
    """Return whether SkyPilot's infra is a cluster of Kubernetes."""
    return infra.partition("/")[0] in {"k8s", "kubernetes"}


def _is_job_group(request: Request) -> bool:
    """Return whether each part is a task of its own: only there have tasks names for each other."""
    return bool(request.groups) and on_kubernetes(request.center)


def _job_group(request: Request, values: Mapping[str, object]) -> str:
    """Return a job group: a task for the trainer, and one for each group, alone taken away."""
    tasks = [fill("skypilot_group.yaml", request, trainer=TRAINER)]
    for task, nodes in request.parts:
        group = "" if task == TRAINER else task
        resources = _sky_resources(request, is_spot=request.is_spot and bool(group))
        own = {"task": task, "nodes": nodes, "group": group, "leads": not group, "in_group": True}
        tasks.append(fill("skypilot.yaml", request, resources=resources, **own, **values))
    return "---\n".join(tasks)


def _sky_resources(request: Request, *, is_spot: bool) -> str:
    """Return where, and on what, the nodes of a task run."""
    resources = [f"accelerators: {request.gpu_type or 'H100'}:{request.gpus}"]
    if not request.gpus:
        resources = ["cpus: 8+", "memory: 32+"]
    if request.center:
        resources.append(f"infra: {request.center}")
    if is_spot:
        resources.append("use_spot: true")
    return "\n".join(resources)


def _sky_notes(request: Request) -> Iterator[str]:
    """Yield what to know before the first step."""
    if request.groups and not _is_job_group(request):
        yield (
            "One task has all nodes, and the last ranks are of the groups: only on Kubernetes"
            " (--center k8s) has SkyPilot names between tasks, of which each is then started again"
            " alone"
        )


def _model_on_skypilot(request: Request, folder: str) -> ModelPlace:
    """Return the place in the bucket, or in the cluster, from which it is copied before its end."""
    if not request.volume:
        return ModelPlace(
            f"{folder} in the cluster",
            (f"rsync -az {request.job}:{folder} .",),
            "The cluster has the only copy, and `sky down` deletes it: copy it before, or add"
            " --volume s3://BUCKET",
        )
    if "://" not in request.volume:
        return ModelPlace(f"{folder} on the volume {request.volume}")
    place = f"{request.volume}{folder.removeprefix('/checkpoints')}"
    programs = {"s3": "aws s3 sync", "gs": "gcloud storage rsync --recursive"}
    program = programs.get(request.volume.partition("://")[0])
    get = (f"{program} {place} {request.job}",) if program else ()
    return ModelPlace(place, get)


# --- one's own machines ------------------------------------------------------------------------


_OF_ANY_JOB = {"AGENT_CHECKPOINTS", "AGENT_LOG_DIR", "HF_HOME"}
"""Variables that a command of one's own keeps."""


def ssh(request: Request) -> StartFiles:
    """Return a loop over machines, to each of which the files are copied."""
    folders = Folders(
        data="/root/data",
        code="/opt",
        checkpoints="/root/pod-agent/checkpoints",
        logs="/root/pod-agent/agent-logs",
        models="/root/pod-agent/huggingface",
        is_shared=False,
        services=f"/root/pod-agent/{SERVICES}",
        archive="/root/pod-agent",
    )
    variables = job_variables(request, folders, restarted=False)
    data = variables.get("AGENT_TRAIN_DATA", "")
    names = [name for name in variables if name in _OF_ANY_JOB]
    common = {name: variables.pop(name) for name in names}
    files = [*sent_files(request), *services_files(request, folders)]

    # A shell does what the image lacks, and then becomes the agent with the loop's words.
    place = f"/root/pod-agent/{request.agent.name}"
    commands = start_commands(request, folders, place)[:-1]
    commands.append(f'exec {request.agent.start(place)} "$@"')
    text = fill(
        "ssh.sh",
        request,
        hosts=" ".join(map(shlex.quote, request.hosts)),
        flags="--gpus all" if request.gpus else "",
        files=" ".join(file.name for file in files),
        packs=f"python3 {PACK}" if request.code is not None else "",
        job_words=request.words,
        common=_docker_variables(common),
        job=_docker_variables(variables),
        script=shlex.quote(" && ".join(commands)),
    )
    loop = text_file("loop.sh", text, is_program=True)
    keys = "".join(f" {secret}=${secret}" for secret in secret_names(request))
    files += packing_files(request)
    head = request.hosts[0]
    folder = f"pod-agent/checkpoints/{request.job}"
    model = ModelPlace(f"~/{folder} on {head}", (f"scp -r {head}:{folder} .",))
    steps = (f"export RAY_AUTH_TOKEN={RANDOM}{keys}", "bash loop.sh")
    notes: tuple[str, ...] = ()
    if request.shares_weights:
        shared = "which must be one folder of all machines (NFS)"
        notes = (f"The engines load each new model from ~/{folder}, {shared}",)
    return StartFiles((loop, *files), steps, model, notes, data)


def _docker_variables(variables: Mapping[str, str]) -> str:
    return "\n".join("--env " + shlex.quote(f"{name}={text}") for name, text in variables.items())
