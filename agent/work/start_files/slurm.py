"""The batch script for Slurm: without containers, or with apptainer, Pyxis or podman."""

from __future__ import annotations

from agent.work.start_files.request import (
    Folders,
    Request,
    StartFile,
    comment,
    image_of,
    job_variables,
    preset_of,
    recipe_line,
    shell_exports,
)

_NAMES = {"none": "plain.sbatch", "podman": "amd.sbatch"}
_IMAGES = {"podman": "rocm/verl:verl-0.7.1.amd0_rocm7.0.2_ubuntu22.04_py3.12_vllm0.20.2"}
"""Images for AMD GPUs, where podman or docker is the usual container."""

_HEAD = """\
#!/bin/bash
#SBATCH --nodes={nodes} --gpus-per-node={gpus}   # change (1 of 3): the nodes, and the GPUs of each
#SBATCH --ntasks-per-node=1 --exclusive --mem=0 --time=1-00:00:00 --requeue --open-mode=append
{where}
export AGENT_JOB={recipe}   # change (3 of 3): what to train, here and below
{variables}

# {about}, {how}. In a folder that every node
# sees, since agent-logs/<job>/<node>/ is written there:
#
#   mkdir -p -m 700 ~/.config/pod-agent
#   (umask 077 && openssl rand -hex 32 > ~/.config/pod-agent/token)   # once
#   cp dist/pod-agent ~/                                              # once: docs/install.md
#   sbatch {name}
#
# Partition and account: as options of sbatch, or as further directives above. Whole nodes, since
# one task alone has one CPU and part of the memory. AGENT_STOP_GRACE stays at its 25 s: Slurm kills
# what is left 30 s (KillWait) after scancel, the time limit or a requeue.
set -euo pipefail
"""

_NONE = """\
export PATH="$HOME/venv/bin:$PATH"   # the framework's Python is the job's
export RAY_AUTH_TOKEN_FILE="$HOME/.config/pod-agent/token"
{common}
# With --kill-on-bad-exit a node that fails ends the others at once. Their 143 may hide its code
# from srun, but not its outcome.json.
code=0
srun --kill-on-bad-exit=1 --cpu-bind=none "$agent" run || code=$?
"""

_APPTAINER = """\
export RAY_AUTH_TOKEN_FILE="$HOME/.config/pod-agent/token"
{common}
# apptainer mounts the home and the current folder, and keeps the environment. `--nv` brings the
# GPUs' driver; `--rocm` is its counterpart. A node that fails ends the others at once; their 143
# may hide its code from srun, but not its outcome.json.
code=0
srun --kill-on-bad-exit=1 --cpu-bind=none \\
  apptainer exec --nv --bind "$PWD" --pwd "$PWD" "$IMAGE" {command} || code=$?
"""

_PYXIS = """\
mkdir -p "$HOME/.cache/huggingface"
export RAY_AUTH_TOKEN_FILE=/run/pod-agent/token
if [ -r "$HOME/.config/pod-agent/wandb" ]; then export WANDB_API_KEY_FILE=/run/pod-agent/wandb; fi
export HF_HOME=/huggingface
export AGENT_WAIT_HEAD=30m AGENT_WAIT_WORKERS=30m   # the first run imports the image on each node
{common}
# What the job writes is in the folder from which it was sent. A node that fails ends the others at
# once; their 143 may hide its code from srun, but not its outcome.json.
mounts="$PWD:/workspace,$HOME/.cache/huggingface:/huggingface,$agent:/usr/local/bin/pod-agent:ro"
code=0
srun --kill-on-bad-exit=1 --cpu-bind=none --export=ALL --container-image="$IMAGE" \\
  --container-mounts="$mounts,$HOME/.config/pod-agent:/run/pod-agent:ro" \\
  --container-workdir=/workspace --no-container-mount-home --no-container-entrypoint \\
  {command} || code=$?
"""

_PODMAN = """\
export IMAGE agent
RAY_AUTH_TOKEN=$(<"$HOME/.config/pod-agent/token")
export RAY_AUTH_TOKEN
if [ -r "$HOME/.config/pod-agent/wandb" ]; then
  WANDB_API_KEY=$(<"$HOME/.config/pod-agent/wandb")
  export WANDB_API_KEY
fi
export HF_HOME=$HOME/.cache/huggingface
export AGENT_WAIT_HEAD=30m AGENT_WAIT_WORKERS=30m   # the first run pulls the image on each node
{common}
# The cluster's network, as its administrators say; variables with these prefixes are passed on.
# export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_8,mlx5_9 NCCL_IB_GID_INDEX=3
export GPU_MAX_HW_QUEUES=2 HSA_NO_SCRATCH_RECLAIM=1 TORCH_NCCL_HIGH_PRIORITY=1
export CUDA_DEVICE_MAX_CONNECTIONS=1 TOKENIZERS_PARALLELISM=false

# A container starts with none of its caller's variables, and the agent needs Slurm's for its rank.
# Only names are given, so that ps shows no value. ROCR_VISIBLE_DEVICES, which Slurm sets, stays
# outside: Ray uses HIP_VISIBLE_DEVICES, and all GPUs are visible here. Under docker the container's
# user is root: a home on NFS that refuses root needs another folder. A container that outlives its
# killed client must be removed by hand.
on_each_node() {{
  local engine name variables=()
  engine=$(command -v podman || command -v docker) || {{
    echo "neither podman nor docker on $(hostname)" >&2
    return 127
  }}
  for name in ${{!SLURM@}} ${{!AGENT_@}} ${{!NCCL_@}} ${{!RCCL_@}} ${{!HSA_@}} ${{!WANDB_@}} \\
    RAY_AUTH_TOKEN HF_HOME PYTHONPATH GPU_MAX_HW_QUEUES TORCH_NCCL_HIGH_PRIORITY \\
    CUDA_DEVICE_MAX_CONNECTIONS TOKENIZERS_PARALLELISM; do
    variables+=(--env "$name")
  done
  if [ -e /dev/infiniband ]; then variables+=(--device /dev/infiniband); fi
  exec "$engine" run --rm --name "pod-agent-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}" \\
    --network host --shm-size 128G --device /dev/dri --device /dev/kfd --group-add video \\
    --cap-add SYS_PTRACE --security-opt seccomp=unconfined --ulimit memlock=-1 \\
    --volume "$HOME:$HOME" --workdir "$PWD" "${{variables[@]}}" --entrypoint "$agent" "$IMAGE" "$@"
}}

# A node that fails ends the others at once; their 143 may hide its code from srun, but not its
# outcome.json.
code=0
srun --kill-on-bad-exit=1 --cpu-bind=none --export=ALL \\
  bash -c "$(declare -f on_each_node); on_each_node \\"\\$@\\"" on_each_node \\
  run || code=$?
"""

_TAIL = """\

# 75, lost: requeued, at most three times, the same job continues in its folders with the next
# attempt. The head's outcome decides, since srun returns the highest code of all. (Slurm
# itself requeues the job of a node that is down, after SlurmdTimeout.)
outcome="${{AGENT_LOG_DIR:-agent-logs}}/$SLURM_JOB_ID/$SLURMD_NODENAME/outcome.json"
if [ "$code" != 0 ] && grep -qs '^  "kind": "lost"' "$outcome"; then
  [ "${{SLURM_RESTART_COUNT:-0}}" -ge 3 ] || scontrol requeue "$SLURM_JOB_ID" || exit 75
fi
exit "$code"

# `{recipe_line}` shows the command of the recipe,
# and why. A command of your own, in the place of `run` above, without AGENT_JOB:
#
#   run -- python3 train.py --nodes {{nodes}} --gpus {{gpus_per_node}}
"""

_HOW = {
    "none": "on Slurm without containers",
    "apptainer": "on Slurm in a container of apptainer",
    "pyxis": "on Slurm in a container of Pyxis",
    "podman": "on Slurm, on AMD GPUs, in a container of podman or docker",
}
_PARTS = {"none": _NONE, "apptainer": _APPTAINER, "pyxis": _PYXIS, "podman": _PODMAN}


def render(request: Request) -> list[StartFile]:
    """Return the batch script."""
    variant = request.variant
    preset, in_home = preset_of(request), "/workspace" if variant == "pyxis" else "$HOME"
    folders = Folders(
        data=f"{in_home}/data",
        code=in_home,
        checkpoints="/workspace/checkpoints" if variant == "pyxis" else "$PWD/checkpoints",
    )
    variables = job_variables(request, folders, restarted=True)
    if variant == "none":
        variables.pop("PYTHONPATH", None)  # the framework is installed in ~/venv
    agent = request.agent or "$HOME/pod-agent"
    image = request.image or _IMAGES.get(variant) or image_of(request)
    if variant == "apptainer" and not request.image:
        image = f"docker://{image}"
    marked = "# change (2 of 3):"
    where = {
        "none": f'agent="{agent}"   {marked} the one file; verl or what you use is in ~/venv',
    }.get(variant, f"IMAGE={image}   {marked} the image, or its .sif or .sqsh\nagent={agent}")
    name = _NAMES.get(variant, f"{variant}.sbatch")
    head = _HEAD.format(
        nodes=request.nodes,
        gpus=request.gpus,
        where=where,
        recipe=request.recipe,
        variables=shell_exports({k: v for k, v in variables.items() if k != "AGENT_JOB"}),
        about=preset.about,
        how=_HOW[variant],
        name=name,
    )
    text = head + _PARTS[variant].format(common=_common(request), command=_command(request))
    text += _TAIL.format(recipe_line=recipe_line(request))
    steps = (
        "mkdir -p -m 700 ~/.config/pod-agent",
        "(umask 077 && openssl rand -hex 32 > ~/.config/pod-agent/token)",
        f"cp dist/pod-agent {agent}",
        f"sbatch {name}",
    )
    return [StartFile(name, text, steps)]


def _common(request: Request) -> str:
    """Return what the batch script does once, on a disk that every node sees."""
    preset = preset_of(request)
    if preset.checkout is None:
        return ""
    code = "$HOME" if request.variant != "pyxis" else "$PWD"
    about = comment(f"{preset.checkout.folder}'s repository, for its program that makes the data.")
    if request.variant != "none":
        about = comment(f"{preset.checkout.folder} runs from its repository.")
    return f"{about}\n{preset.checkout.command(code)}\n"


def _command(request: Request) -> str:
    """Return the command in a container; what the image lacks is installed before."""
    preset = preset_of(request)
    own = "pod-agent run" if request.variant == "pyxis" else '"$agent" run'
    install = preset.install
    if not install or request.variant == "podman":
        return own
    quoted = " && ".join(install).replace("'", '"')
    return f"bash -c '{quoted} && exec \"$@\"' bash {own}"
