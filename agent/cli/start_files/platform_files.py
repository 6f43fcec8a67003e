"""The start files of each platform: the values of their templates, and the next steps."""

from __future__ import annotations

import json
import shlex

from agent.cli.start_files.request import (
    Folders,
    Request,
    StartFile,
    comment,
    fill,
    job_variables,
    run_commands,
    setup_commands,
    shell_exports,
    yaml_env,
    yaml_mapping,
)

_RANDOM = "$(openssl rand -hex 32)"


def dstack(request: Request) -> list[StartFile]:
    """Return a task of dstack; the one file is sent along."""
    name = f"{request.recipe}.dstack.yml"
    target = "/opt/pod-agent"
    folders = Folders(
        "/root/data", "/opt", "/checkpoints", "/checkpoints/agent-logs", is_shared=False
    )
    commands = [*setup_commands(request, folders), *run_commands(request, target)]
    commands.append(f"exec sh {target} run")
    text = fill(
        "dstack.yml",
        request,
        variables=yaml_mapping(job_variables(request, folders, restarted=True), 2),
        sent=_sent_file(request),
        commands="\n".join(f"- {_yaml_scalar(command)}" for command in commands),
    )
    steps = (f'dstack secret set ray_auth_token "{_RANDOM}"', f"dstack apply -f {name}")
    return [StartFile(name, text, (*_copied(request), *steps))]


def _yaml_scalar(text: str) -> str:
    """Return a text as a scalar of YAML, which is plain unless it must be quoted."""
    must_be_quoted = ": " in text or " #" in text
    return json.dumps(text) if must_be_quoted else text


def _sent_file(request: Request) -> str:
    """Return the path of the one file here, or '' where nodes fetch it."""
    return "" if request.url else request.agent or "pod-agent"


def _copied(request: Request) -> tuple[str, ...]:
    """Return the step that puts the one file beside the start file, where it is sent along."""
    if request.url or request.agent:
        return ()
    return ("cp dist/pod-agent pod-agent",)


def skypilot(request: Request) -> list[StartFile]:
    """Return a task of SkyPilot; the one file is a file mount."""
    name = f"{request.recipe}.sky.yaml"
    target = "/root/pod-agent"
    folders = Folders(
        "/root/data", "/root", "/root/checkpoints", models="/root/huggingface", is_shared=False
    )
    variables = job_variables(request, folders, restarted=False) or {"AGENT_JOB": "rehearsal"}
    setup = setup_commands(request, folders)
    run = [*run_commands(request, target), f"exec sh {target} run"]
    mounts = {} if request.url else {target: _sent_file(request)}

    # Search-R1's retriever needs its services file and its index.
    services = request.preset.services
    if services:
        mounts["/root/services.toml"] = f"examples/services/{services}"
        variables = {"AGENT_SERVICES": "/root/services.toml", **variables}
        setup.append(_SEARCH_INDEX)

    text = fill(
        "skypilot.yaml",
        request,
        mounts=yaml_mapping(mounts, 2),
        variables=yaml_mapping(variables, 2),
        setup="\n".join(setup),
        run="\n".join(run),
    )
    steps = (
        f"export RAY_AUTH_TOKEN={_RANDOM}",
        f"sky launch -c {request.recipe} --secret RAY_AUTH_TOKEN {name}",
    )
    return [StartFile(name, text, (*_copied(request), *steps))]


_SEARCH_INDEX = """\
# The index and the corpus, on every node, before `run`.
mkdir -p /root/data && cd /opt/Search-R1
if [ ! -e /root/data/wiki-18.jsonl ]; then
  python3 scripts/download.py --save_path /root/data
  cat /root/data/part_* > /root/data/e5_Flat.index && rm /root/data/part_*
  gzip -d /root/data/wiki-18.jsonl.gz
fi"""


def runpod(request: Request) -> list[StartFile]:
    """Return the request for an Instant Cluster, or the template of pods."""
    gpu = "NVIDIA H100 80GB HBM3"
    has_volume = bool(request.volume)
    folders = Folders(
        data="/workspace/data",
        code="/workspace" if has_volume else "/opt",
        checkpoints="/workspace/checkpoints",
        logs="/workspace/agent-logs",
        models="/workspace/huggingface",
        is_shared=has_volume,
    )

    # The container's command: the agent, after what its image lacks.
    target = "/opt/pod-agent" if request.url else request.agent or "/workspace/pod-agent"
    start = [*setup_commands(request, folders), *run_commands(request, target)]
    command = f"sh {target} run"
    if start:
        script = " && ".join([*start, f"exec {command}"]).replace('"', '\\"')
        command = f'bash -c "{script}"'

    variables = job_variables(request, folders, restarted=True)
    text = fill(
        "runpod.json",
        request,
        quoted_image=json.dumps(request.container_image),
        gpu=gpu,
        command=json.dumps(command, ensure_ascii=False),
        variables=",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in variables.items()),
        volume=json.dumps(request.volume) if has_volume else "",
        persistent=not has_volume,
        **{kind: kind == request.variant for kind in ("pods", "cluster")},
    )

    # What to do with the file.
    steps = ["# in RunPod's console: make the secret ray_auth_token (openssl rand -hex 32)"]
    if request.variant == "cluster":
        name = "instant-cluster.json"
        steps.append(f"# POST {name} to https://api.runpod.io/v2/clusters")
    else:
        name = "template.json"
        where = f"--gpus {request.gpus} --center EU-RO-1"
        steps.append(f"RUNPOD_API_KEY=… python3 pods.py --gpu {gpu!r} {where}")
    if has_volume and not request.url:
        place = f"s3://{request.volume}/pod-agent --endpoint-url https://s3api-eu-ro-1.runpod.io"
        steps.insert(0, f"aws s3 cp dist/pod-agent {place} --region eu-ro-1")
    return [StartFile(name, text, tuple(steps))]


def ssh(request: Request) -> list[StartFile]:
    """Return a loop over machines, with the one file copied to each."""
    about = request.preset.about
    folders = Folders(
        "/root/data", "/opt", "/root/checkpoints", models="/root/huggingface", is_shared=False
    )
    variables = job_variables(request, folders, restarted=False)
    given = "\n".join("--env " + shlex.quote(f"{name}={text}") for name, text in variables.items())

    # What the image lacks is done by a shell, which then becomes the agent.
    setup = " && ".join([*setup_commands(request, folders), *run_commands(request)])
    script = shlex.quote(f'{setup} && exec pod-agent "$@"')
    text = fill(
        "ssh.sh",
        request,
        hosts=" ".join(f"10.0.0.{5 + number}" for number in range(request.nodes)),
        flags="--gpus all" if request.gpus else "",
        agent=request.agent or "pod-agent",
        about=about[0].lower() + about[1:],
        given=given,
        job='"${job[@]}" ' if given else "",
        entrypoint="bash" if setup else "pod-agent",
        words=f"-c {script} bash " if setup else "",
    )
    steps = (f"export RAY_AUTH_TOKEN={_RANDOM}", "bash loop.sh")
    return [StartFile("loop.sh", text, (*_copied(request), *steps), is_program=True)]


_SBATCH_NAMES = {"none": "plain.sbatch", "podman": "amd.sbatch"}
_AMD_IMAGE = "rocm/verl:verl-0.7.1.amd0_rocm7.0.2_ubuntu22.04_py3.12_vllm0.20.2"
"""For AMD GPUs, where podman or docker is the usual container."""
_SLURM_HOW = {
    "none": "on Slurm without containers",
    "apptainer": "on Slurm in a container of apptainer",
    "pyxis": "on Slurm in a container of Pyxis",
    "podman": "on Slurm, on AMD GPUs, in a container of podman or docker",
}


def slurm(request: Request) -> list[StartFile]:
    """Return the batch script: without containers, or with apptainer, Pyxis or podman."""
    variant = request.variant
    is_pyxis = variant == "pyxis"
    folders = Folders("$HOME/data", "$HOME", "$PWD/checkpoints")
    if is_pyxis:
        folders = Folders("/workspace/data", "/workspace", "/workspace/checkpoints")
    variables = job_variables(request, folders, restarted=True)
    variables.pop("AGENT_JOB", None)
    if variant == "none":
        variables.pop("PYTHONPATH", None)  # the framework is installed in ~/venv

    # The command: the agent, after what the image lacks.
    command = "pod-agent run" if is_pyxis else '"$agent" run'
    if request.preset.install:
        script = " && ".join(request.preset.install).replace("'", '"')
        command = f"bash -c '{script} && exec \"$@\"' bash {command}"

    name = _SBATCH_NAMES.get(variant, f"{variant}.sbatch")
    agent = request.agent or "$HOME/pod-agent"
    text = fill(
        "slurm.sbatch",
        request,
        name=name,
        image=_slurm_image(request),
        agent=agent,
        variables=shell_exports(variables),
        how=_SLURM_HOW[variant],
        container=variant != "none",
        checkout=_slurm_checkout(request),
        command=command,
        **{known: known == variant for known in _SLURM_HOW},
    )
    steps = (
        "mkdir -p -m 700 ~/.config/pod-agent",
        "(umask 077 && openssl rand -hex 32 > ~/.config/pod-agent/token)",
        f"cp dist/pod-agent {agent}",
        f"sbatch {name}",
    )
    return [StartFile(name, text, steps)]


def _slurm_image(request: Request) -> str:
    if request.image:
        return request.image
    if request.variant == "podman":
        return _AMD_IMAGE
    if request.variant == "apptainer":
        return f"docker://{request.container_image}"
    return request.container_image


def _slurm_checkout(request: Request) -> str:
    """Return the lines that clone the framework's repository, or ''."""
    checkout = request.preset.checkout
    if checkout is None:
        return ""
    purpose = "'s repository, for its program that makes the data."
    if request.variant != "none":
        purpose = " runs from its repository."
    command = checkout.command("$PWD" if request.variant == "pyxis" else "$HOME")
    return f"{comment(checkout.folder + purpose)}\n{command}"


_SHARED = "/workspace"
_MANIFESTS = {
    "lws": ("lws.yaml", "agent"),
    "trainjob": ("kubeflow-trainjob.yaml", "node"),
    "pytorchjob": ("pytorchjob.yaml", "pytorch"),
}
"""By kind: the file, and the name of its containers."""


def _in_workspace(code: str) -> Folders:
    """Return the folders on a claim that every pod mounts."""
    return Folders(
        data=f"{_SHARED}/data",
        code=code,
        checkpoints=f"{_SHARED}/checkpoints",
        logs=f"{_SHARED}/agent-logs",
        models=f"{_SHARED}/huggingface",
    )


def kubernetes(request: Request) -> list[StartFile]:
    """Return the manifest of a LeaderWorkerSet, a TrainJob or a PyTorchJob."""
    kind = request.variant
    folders = _in_workspace("/opt")
    name, container = _MANIFESTS[kind]
    agent = f"{_SHARED}/pod-agent"
    if request.url:
        agent = "/opt/agent/pod-agent"
    elif request.agent:
        agent = request.agent

    # Are data, checkpoints or the one file on a volume?
    has_claim = request.recipe != "rehearsal" or not request.url
    claim = ""
    if has_claim:
        root = "" if request.url else " with dist/pod-agent in its root,"
        claim = f" a claim `rl-workspace` that every pod can mount (ReadWriteMany),{root} and"

    variables = {
        "AGENT_STOP_GRACE": "90s",
        "AGENT_WAIT_HEAD": "30m",
        "AGENT_WAIT_WORKERS": "30m",
        **({"AGENT_ON_DONE": "hold"} if kind == "lws" else {}),
        **job_variables(request, folders, restarted=kind == "lws"),
    }
    if not has_claim:
        variables.pop("AGENT_LOG_DIR", None)

    resources = "cpu: 8, memory: 32Gi"
    if request.gpus:
        resources = f"nvidia.com/gpu: {request.gpus}"
    pod = fill(
        "kubernetes_pod.yaml",
        request,
        name=name,
        container=container,
        resources=f"{{limits: {{{resources}}}}}",
        shared_memory="128Gi" if request.gpus else "8Gi",
        claim=claim,
        command=_command_lines(request, folders, agent),
        variables=yaml_env(variables, 6),
        quoted_url=json.dumps(request.url),
        **{known: known == kind for known in _MANIFESTS},
    )
    text = fill(f"kubernetes_{kind}.yaml", request, pod=pod)

    steps = [
        f'kubectl create secret generic pod-agent --from-literal=ray-auth-token="{_RANDOM}"',
        f"kubectl apply -f {name}",
    ]
    if not request.url:
        steps.insert(0, "# make the claim rl-workspace, and copy dist/pod-agent into its root")
    return [StartFile(name, text, tuple(steps))]


def _command_lines(request: Request, folders: Folders, agent: str) -> str:
    """Return a container's command; what the image lacks is installed before."""
    setup = [*setup_commands(request, folders), *run_commands(request)]
    if not setup:
        return f"command: [sh, {agent}]\nargs: [run]"
    lines = "".join(f"    {line}\n" for line in [*setup, f'exec sh {agent} "$@"'])
    return f"command:\n  - bash\n  - -ec\n  - |\n{lines}  - bash\nargs: [run]"


def kuberay(request: Request) -> list[StartFile]:
    """Return a RayJob, whose submitter is the agent."""
    folders = _in_workspace(_SHARED)
    agent = request.agent or f"{_SHARED}/pod-agent"

    # Some variables are those of the cluster's pods, all others of the submitter.
    variables = job_variables(request, folders, restarted=False)
    names = [name for name in ("HF_HOME", "PYTHONPATH") if name in variables]
    cluster: dict[str, str] = {name: variables.pop(name) for name in names}
    own = {"EXPECTED_WORKERS": str(request.nodes - 1), "AGENT_STOP_GRACE": "90s"}

    resources = "cpu: 8, memory: 32Gi"
    if request.gpus:
        resources = f"cpu: 64, memory: 512Gi, nvidia.com/gpu: {request.gpus}"
    text = fill(
        "kuberay.yaml",
        request,
        size=f"{{limits: {{{resources}}}}}",
        cluster_env=yaml_env(cluster or {"HF_HOME": folders.models}, 18),
        agent=agent,
        env=yaml_env({**own, **variables}, 12),
        command=_command_lines(request, folders, agent),
    )
    steps = (
        "# make the claim rl-workspace, and copy dist/pod-agent into its root",
        "kubectl create -f rayjob.yaml",
    )
    return [StartFile("rayjob.yaml", text, steps)]
