"""The start files of Slurm: the batch script, and a program that fetches its files before."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from msgspec.structs import replace

from agent.base.text import parse_toml
from agent.base.value import Value
from agent.cli.start_files.platform_files import SERVICES, sent_files
from agent.cli.start_files.request import (
    Folders,
    ModelPlace,
    Request,
    StartFiles,
    is_hub_data,
    job_variables,
    programs_of_image,
    text_file,
    usual_data,
)
from agent.cli.start_files.template_text import fill, shell_exports
from agent.settings.rules import TRAINER

AMD_IMAGE = "rocm/verl:verl-0.7.1.amd0_rocm7.0.2_ubuntu22.04_py3.12_vllm0.20.2"
"""For AMD GPUs, where podman or docker is the usual container."""
AMD_TAG = "v0.7.1"  # Of the verl in that image: AMD publishes none with a newer one
_HOW = {
    "none": "on Slurm without containers",
    "apptainer": "on Slurm in a container of apptainer",
    "pyxis": "on Slurm in a container of Pyxis",
    "podman": "on Slurm, on AMD GPUs, in a container of podman or docker",
}
_FOLDERS = Folders(
    data="$PWD/data",
    code="$PWD",
    checkpoints="$PWD/checkpoints",
    logs="$PWD/agent-logs",
    has_hub=False,
    services=f"$PWD/{SERVICES}",
)
_NODES_END = (
    "A node that fails ends the others at once; their 143 may hide its code from srun, but not its"
    " outcome.json."
)
_GROUPS_END = "A node that fails or is lost ends no other: the head decides what follows."
_ENVIRONMENT = "pod-agent-venv"
"""The folder of the agent's environment, where fetch.sh installs a wheel."""
_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")


class _Data(Value, frozen=True):
    """The training data: where they are on the nodes, and what fetches them."""

    train: str
    data_set: str = ""  # A data set of the hub, to be fetched to `train`
    prepare: str = ""  # A command that makes them


def slurm(request: Request) -> StartFiles:
    """Return the batch script of a container, or of none, and the program to run before it."""
    variant = request.variant
    name = f"{request.job}.sbatch"
    data = _data_of(request)
    variables = job_variables(request, _FOLDERS, restarted=True)
    if data.train:
        variables["AGENT_TRAIN_DATA"] = data.train
    if variant == "none":
        variables.pop("PYTHONPATH", None)  # the framework is installed in its Python
    image = _image(request)
    python = _python_folder(request)
    code = _code_elsewhere(request)
    is_wheel = request.agent.kind == "wheel"

    text = fill(
        "slurm.sbatch",
        request,
        how=_HOW[variant],
        options=_options(request),
        step=_step(request),
        trainers=_trainers(request),
        beside=_beside(request),
        ends=_GROUPS_END if request.groups else _NODES_END,
        groups=bool(request.groups),
        alone=not request.groups,
        agent=f"$PWD/{_ENVIRONMENT}/bin/pod-agent" if is_wheel else f"$PWD/{request.agent.name}",
        variables=shell_exports(variables),
        python_folder=python,
        image=image,
        words=request.words,
        workdir=_workdir(request),
        chdir=f" --chdir={code}" if code else "",
        bind=f" --bind {code}" if code else "",
        mount=f",{code}:{code}" if code else "",
        volume=f" --volume {code}:{code}" if code else "",
        **{known: known == variant for known in _HOW},
    )
    fetch = fill("slurm_fetch.sh", request, **_fetch_values(request, data, image, python))

    # The files, and what to type.
    files = (text_file(name, text), text_file("fetch.sh", fetch, is_program=True))
    own_services = [text_file(SERVICES, request.services)] if request.services else []
    follow = f"tail -F {request.job}-${{job%%;*}}.out"
    about = "the file appears when the job starts; its `watch` line opens the page"
    steps = (
        "bash fetch.sh   # once, on a login node with internet: agent, image, model, data",
        f"job=$(sbatch --parsable {name}) && {follow}   # {about}",
    )
    notes = []
    if variant == "podman":
        notes.append("--container podman is for AMD GPUs; NVIDIA's are apptainer's and pyxis' part")
    if request.group_nodes and any(nodes == 1 for _, nodes in request.parts):
        notes.append(
            "Slurm ends a component of one node with any lost node of the job, which is then"
            " requeued: with two nodes or more in each it goes on without a lost engine"
        )
    model = ModelPlace(f"checkpoints/{request.job} in the folder of {name}")
    trained = variables.get("AGENT_TRAIN_DATA", "")
    sent = (*sent_files(request), *own_services)
    return StartFiles((*files, *sent), steps, model, tuple(notes), trained)


def _options(request: Request) -> str:
    """Return the directives of the nodes: for groups those of a component for each, in order."""
    components = []
    for part, nodes in _components(request):
        partition = request.partition
        if part != TRAINER and request.group_nodes:
            partition = request.group_nodes
        stays = " --no-kill" if request.groups else ""
        limit = request.time or "1-00:00:00"
        words = [f"--nodes={nodes} --ntasks-per-node=1 --exclusive --mem=0 --time={limit}{stays}"]
        words += [f"--gpus-per-node={request.gpus}"] * bool(request.gpus)
        words += [f"--partition={partition}"] * bool(partition)
        words += [f"--account={request.account}"] * bool(request.account)
        components.append("\n".join(f"#SBATCH {word}" for word in words))
    return "\n#SBATCH hetjob\n".join(components)


def _components(request: Request) -> tuple[tuple[str, int], ...]:
    """Return the parts that are components of a heterogeneous job; one with all nodes for another.

    Slurm (22.05, and later by its sources) takes a lost node for one of every component, and ends a
    component of one node with it, whatever `--no-kill` says: a part of one node gets none.
    """
    if not request.group_nodes and any(nodes == 1 for _, nodes in request.parts):
        return ((TRAINER, request.nodes),)
    return request.parts


def _trainers(request: Request) -> str:
    """Return the hosts that train, as a shell makes their list."""
    if len(_components(request)) > 1:
        return '"$SLURM_JOB_NODELIST_HET_GROUP_0"'
    trainers = request.parts[0][1]
    return f'$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n {trainers} | paste -sd,)'


def _beside(request: Request) -> str:
    """Return the options of a step on another node than the first: one that trains, if there is."""
    if len(_components(request)) == 1:
        return "--relative=1"
    return "--het-group=0 --relative=1" if request.parts[0][1] > 1 else "--het-group=1"


def _step(request: Request) -> str:
    """Return the options of the step over all nodes: whether the end of one ends the others."""
    if not request.groups:
        return "--kill-on-bad-exit=1"
    stays = "--kill-on-bad-exit=0 --no-kill"
    components = ",".join(str(number) for number, _ in enumerate(_components(request)))
    return stays if components == "0" else f"--het-group={components} {stays}"


def _fetch_values(request: Request, data: _Data, image: str, python: str) -> dict[str, object]:
    """Return the values of the program that fetches."""
    preset = request.preset
    variant = request.variant

    # The image, and what it lacks. Enroot has `#` after a registry.
    base = request.container_image
    if variant == "podman" and not request.image:
        base = AMD_IMAGE
    enroot = base
    registry, _, path = base.partition("/")
    if "." in registry and path:
        enroot = f"{registry}#{path}"
    installs = request.installs if variant != "none" else ()

    # The model, unless it is a folder; the data; the framework's repository.
    model = request.model or preset.model
    if not _ON_HUB.fullmatch(model):
        model = ""
    data_folder = f'"{data.train}"' if data.data_set else ""
    prepare = _in_double_quotes(data.prepare) if data.prepare else ""
    programs = programs_of_image(request) if variant != "none" else ""
    folder = ""
    checkout = ""
    prepare_path = ""
    if preset.checkout is not None:
        folder = preset.checkout.folder
        cloned = preset.checkout
        if base == AMD_IMAGE:
            cloned = replace(cloned, tag=AMD_TAG)
        checkout = cloned.command("$PWD")
        prepare_path = f'"$PWD/{folder}"'

    # The data of services, by their prepare steps.
    services = ""
    service_steps = ""
    if preset.services:
        services = fill(preset.services, request, data="$PWD/data", models="$PWD/huggingface")
        service_steps = _service_steps(services)

    return {
        "agent_url": request.agent.url,
        "agent_name": request.agent.name,
        "wheel": request.agent.kind == "wheel",
        "environment": _ENVIRONMENT,
        "agent_fetch": request.agent.fetch_command(request.agent.name),
        "makes_python": _makes_python(request),
        "python_folder": python,
        "imports": preset.imports,
        "image": image if variant == "podman" else base,
        "base_image": base,
        "enroot_image": enroot,
        "installs": "\n".join(installs),
        "no_installs": not installs,
        "joined_installs": " && ".join(installs),
        "quoted_installs": shlex.quote(" && ".join(installs)),
        "folder": folder,
        "checkout": checkout,
        "hub": "huggingface/",
        "hub_python": f"{programs}/python3" if programs else "python3",
        "model": model,
        "data_set": data.data_set,
        "data_folder": data_folder,
        "prepare": prepare,
        "prepare_path": prepare_path,
        "services": services,
        "service_steps": service_steps,
        "sbatch": f"{request.job}.sbatch",
        **{known: known == variant for known in _HOW},
    }


def _data_of(request: Request) -> _Data:
    """Return where the training data are, and how they get there."""
    preset = request.preset
    if request.data and _ON_HUB.fullmatch(request.data) and not preset.has_own_data:
        folder = f"{_FOLDERS.data}/{PurePosixPath(request.data).name}"
        return _Data(folder, data_set=request.data)
    if request.data or not preset.train:
        return _Data(request.data)
    train = usual_data(preset, _FOLDERS)
    if is_hub_data(preset):
        return _Data(train, data_set=preset.train)
    known = {"data": _FOLDERS.data, "code": _FOLDERS.code}
    return _Data(train, prepare=preset.prepare.format_map(known))


def _image(request: Request) -> str:
    """Return the image that podman runs; the other containers run a file that fetch.sh makes."""
    if request.variant != "podman":
        return ""
    if request.installs:
        return f"localhost/pod-agent-{request.job}"
    return request.image or AMD_IMAGE


def _code_elsewhere(request: Request) -> str:
    """Return the folder of a command's code, quoted for a shell; '' if it is the script's own."""
    if request.code is None or request.code.is_here:
        return ""
    return shlex.quote(request.code.folder)


def _workdir(request: Request) -> str:
    """Return the folder in which the job runs, as a shell reads it."""
    return _code_elsewhere(request) or request.preset.code or '"$PWD"'


def _makes_python(request: Request) -> bool:
    """Return whether fetch.sh makes the Python: only the rehearsal needs nothing but Ray."""
    return request.variant == "none" and request.is_rehearsal and not request.python


def _python_folder(request: Request) -> str:
    """Return the folder of the framework's Python, in the scripts between quotes; '' for none."""
    if _makes_python(request):
        return "$PWD/venv/bin"
    if not request.python:
        return ""

    # No shell expands `~` between quotes.
    folder = str(PurePosixPath(request.python).parent)
    return f"$HOME{folder[1:]}" if folder.startswith("~/") else folder


def _service_steps(services: str) -> str:
    """Return what fetches the data of a recipe's services, so that their steps find them done."""
    lines = []
    for step in parse_toml(services).get("prepare", {}).values():
        command = _in_double_quotes(step["command"])
        lines.append(f'[ -e "{step["once"]}" ] || {{')
        lines.append(f"  inside bash -c {command}")
        lines.append(f'  touch "{step["once"]}"\n}}')
    return "\n".join(lines)


def _in_double_quotes(command: str) -> str:
    """Quote a command for a shell that expands `$PWD` in it at once."""
    escaped = command.replace("\\", r"\\").replace('"', r"\"").replace("`", r"\`")
    return f'"{escaped}"'
