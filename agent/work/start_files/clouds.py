"""The files for dstack, SkyPilot, RunPod and machines that are reached by ssh."""

from __future__ import annotations

import json
import shlex

from agent.work.start_files.request import (
    Folders,
    Request,
    StartFile,
    comment,
    fetch_command,
    image_of,
    indented,
    job_variables,
    preset_of,
    recipe_line,
    setup_commands,
    yaml_mapping,
)

_DSTACK = """\
type: task
name: {recipe}
image: {image}   # change (1 of 3): the framework's image
nodes: {nodes}   # change (2 of 3): nodes, the head among them
resources:
  gpu: 80GB:{gpus}   # change (3 of 3): what each node has
  shm_size: 128GB

{about}
env:
  RAY_AUTH_TOKEN: ${{{{ secrets.ray_auth_token }}}}
  # WANDB_API_KEY: ${{{{ secrets.wandb_api_key }}}}  # without it, W&B stays offline
  AGENT_WAIT_HEAD: 30m  # nodes pull a large image at different speeds
  AGENT_WAIT_WORKERS: 30m
{variables}

{files}commands:
{commands}

# When an instance was taken away. Not on `error`, which is also a failure of the job itself.
retry:
  on_events: [interruption]
  duration: 1d

# Ray's dashboard, forwarded to http://localhost:8265 while `dstack apply` is attached.
ports:
  - 8265

# A folder of the instance, which outlives the run.
volumes:
  - /checkpoints:/checkpoints
"""


def dstack(request: Request) -> list[StartFile]:
    """Return a task of dstack; the one file is sent along."""
    preset, name = preset_of(request), f"{request.recipe}.dstack.yml"
    folders = Folders(
        data="/root/data",
        code="/opt",
        checkpoints="/checkpoints",
        logs="/checkpoints/agent-logs",
        is_shared=False,
    )
    about = comment(
        f"""{preset.about}. Once: dstack secret set ray_auth_token "$(openssl rand -hex 32)", and
        a fleet with `placement: cluster`. Then: dstack apply -f {name}""",
        """Every node runs the same command. DSTACK_NODE_RANK decides which one is the head, in
        any order of starting. All nodes end with the job's own exit code.""",
        f"""`{recipe_line(request)}` shows the command of the recipe, and why. A command of your
        own: run -- python3 train.py --nodes {{nodes}}""",
    )
    target = "/opt/pod-agent"
    files, start = "", [f"exec sh {target} run"]
    if request.url:
        start = [fetch_command(request, target), *start]
    else:
        files = (
            "# The one file. dstack's server takes files of 2 MiB, unless its environment has\n"
            "# DSTACK_SERVER_CODE_UPLOAD_LIMIT=0. If that cannot be: init dstack --agent-url …\n"
            f"files:\n  - {request.agent or 'pod-agent'}:{target}\n\n"
        )
    commands = [*setup_commands(preset, folders), *_into(preset.code), *start]
    text = _DSTACK.format(
        recipe=request.recipe,
        image=image_of(request),
        nodes=request.nodes,
        gpus=request.gpus,
        about=about,
        variables=yaml_mapping(job_variables(request, folders, restarted=True), 2),
        files=files,
        commands="\n".join(f"  - {_scalar(command)}" for command in commands),
    )
    steps = (
        'dstack secret set ray_auth_token "$(openssl rand -hex 32)"',
        f"dstack apply -f {name}",
    )
    return [StartFile(name, text, (*_copied(request), *steps))]


def _into(folder: str) -> tuple[str, ...]:
    return (f"cd {folder}",) if folder else ()


def _copied(request: Request) -> tuple[str, ...]:
    """Return the step that puts the one file beside the start file, where it is sent along."""
    return () if request.url or request.agent else ("cp dist/pod-agent pod-agent",)


def _scalar(command: str) -> str:
    """Return a shell command as a plain scalar of YAML, or a quoted one where it must be."""
    return json.dumps(command) if ": " in command or " #" in command else command


_SKYPILOT = """\
name: {recipe}
num_nodes: {nodes}   # change (1 of 3): nodes
resources:
  accelerators: H100:{gpus}   # change (2 of 3): what each node has
  image_id: docker:{image}   # change (3 of 3): the framework's image
  disk_size: 512

{about}
secrets:
  RAY_AUTH_TOKEN: null

{files}envs:
{variables}

{setup}run: |
  set -e
{run}
"""


def skypilot(request: Request) -> list[StartFile]:
    """Return a task of SkyPilot; the one file is a file mount."""
    preset, name = preset_of(request), f"{request.recipe}.sky.yaml"
    folders = Folders(
        data="/root/data",
        code="/root",
        checkpoints="/root/checkpoints",
        models="/root/huggingface",
        is_shared=False,
    )
    variables, target = job_variables(request, folders, restarted=False), "/root/pod-agent"
    about = comment(
        f"""{preset.about}. With a secret of your own: export
        RAY_AUTH_TOKEN=$(openssl rand -hex 32); sky launch -c {request.recipe} --secret
        RAY_AUTH_TOKEN {name}""",
        """`run` is run on each node, and SKYPILOT_NODE_RANK decides which one is the head. SkyPilot
        has its own Ray on 6380 and 8266: the agent leaves it alone, and its own port is 8276.""",
        f"""`{recipe_line(request)}` shows the command of the recipe, and why. A command of your
        own, at the end of `run`: run -- python3 train.py --nodes {{nodes}}""",
    )
    mounts, start = {}, [f"exec sh {target} run"]
    if request.url:
        start = [fetch_command(request, target), *start]
    else:
        mounts[target] = request.agent or "pod-agent"
    if preset.services:
        mounts["/root/services.toml"] = f"examples/services/{preset.services}"
        variables = {"AGENT_SERVICES": "/root/services.toml", **variables}
    files = f"file_mounts:\n{yaml_mapping(mounts, 2)}\n\n" if mounts else ""
    setup = [*setup_commands(preset, folders)]
    if preset.services:
        setup += [_SEARCH_INDEX]
    text = _SKYPILOT.format(
        recipe=request.recipe,
        nodes=request.nodes,
        gpus=request.gpus,
        image=image_of(request),
        about=about,
        files=files,
        variables=yaml_mapping(variables, 2) if variables else "  AGENT_JOB: rehearsal",
        setup="setup: |\n  set -e\n" + indented("\n".join(setup), 2) + "\n\n" if setup else "",
        run=indented("\n".join([*_into(preset.code), *start]), 2),
    )
    steps = (
        "export RAY_AUTH_TOKEN=$(openssl rand -hex 32)",
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


_IN_CONSOLE = "# in RunPod's console: make the secret ray_auth_token (openssl rand -hex 32)"


def runpod(request: Request) -> list[StartFile]:
    """Return the request for an Instant Cluster, or the template of pods."""
    preset, gpu = preset_of(request), "NVIDIA H100 80GB HBM3"
    shared = bool(request.volume)
    folders = Folders(
        *("/workspace/data", "/workspace" if shared else "/opt", "/workspace/checkpoints"),
        *("/workspace/agent-logs", "/workspace/huggingface", shared),
    )
    target = request.agent or "/workspace/pod-agent"
    start = [*setup_commands(preset, folders), *_into(preset.code)]
    if request.url:
        target = "/opt/pod-agent"
        start.append(fetch_command(request, target))
    command = f"sh {target} run"
    if start:
        script = " && ".join([*start, f"exec {command}"]).replace('"', '\\"')
        command = f'bash -c "{script}"'
    env = {"RAY_AUTH_TOKEN": "{{ RUNPOD_SECRET_ray_auth_token }}"}
    env |= {"AGENT_WAIT_HEAD": "30m", "AGENT_WAIT_WORKERS": "30m"}
    env |= job_variables(request, folders, restarted=True)
    persistent = {"persistent": {"size": 300, "path": "/workspace"}}
    network = {"network": [{"volumeId": request.volume, "path": "/workspace"}]}
    rest: dict[str, object] = {
        "disk": 200,
        "mounts": network if shared else persistent,
        "ports": [],
        "startJupyter": False,
        "startSsh": False,
    }
    if request.variant == "cluster":
        body: dict[str, object] = {
            "image": image_of(request),
            "compute": {
                "gpuTypeId": gpu,
                "gpuCountPerPod": request.gpus,
                "podCount": request.nodes,
            },
            "args": command,
            "name": f"pod-agent-{request.recipe}",
            "type": "TRAINING",
            "env": env,
            **rest,
        }
        name = "instant-cluster.json"
        following: tuple[str, ...] = (
            _IN_CONSOLE,
            f"# POST {name} to https://api.runpod.io/v2/clusters",
        )
    else:
        body = {
            "image": image_of(request),
            "args": command,
            "env": {"EXPECTED_WORKERS": str(request.nodes - 1), **env},
            "name": f"pod-agent: {preset.about}",
            "category": "NVIDIA",
            **rest,
        }
        name = "template.json"
        where = f"--gpus {request.gpus} --center EU-RO-1"
        following = (_IN_CONSOLE, f"RUNPOD_API_KEY=… python3 pods.py --gpu {gpu!r} {where}")
    if shared and not request.url:
        target = f"s3://{request.volume}/pod-agent --endpoint-url https://s3api-eu-ro-1.runpod.io"
        following = (f"aws s3 cp dist/pod-agent {target} --region eu-ro-1", *following)
    return [StartFile(name, _json(body), following)]


def _json(body: dict[str, object]) -> str:
    """Return JSON with a line for each key, and for each variable."""
    lines = []
    for key, value in body.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, dict) and key == "env":
            first, *others = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            text = ",\n    ".join(["{" + first, *others]) + "\n  }"
        lines.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


_SSH = """\
#!/usr/bin/env bash
HOSTS=({hosts})  # change (1 of 3): the machines, the head first, as all reach them
IMAGE={image}   # change (2 of 3): the framework's image
GPUS=({flags})   # change (3 of 3): docker's flags for your GPUs; () for none
AGENT={agent}   # the one file, which is copied to ~/pod-agent on every machine

# The same container on every machine, by ssh and docker, until the job ends everywhere:
#
#   export RAY_AUTH_TOKEN=$(openssl rand -hex 32)
#   bash {name}                                    # {about}
#   bash {name} run -- python3 train.py --nodes {{nodes}}
#
# Prints the head's output and ends with its code; the workers' output is in files here. The machine
# that owns AGENT_HEAD's address is the head. Ctrl-C stops the job, in order, everywhere.
set -euo pipefail
: "${{RAY_AUTH_TOKEN:?is not set: export one secret, for example from openssl rand -hex 32}}"
name=pod-agent-$$
export AGENT_HEAD=${{HOSTS[0]#*@}} EXPECTED_WORKERS=$((${{#HOSTS[@]}} - 1))
{job}flags=(docker run --rm --name "$name" --network host --shm-size 64G --ulimit memlock=-1
  ${{GPUS[@]+"${{GPUS[@]}}"}} --env AGENT_HEAD="$AGENT_HEAD"
  --env EXPECTED_WORKERS="$EXPECTED_WORKERS" --env RAY_AUTH_TOKEN {given}--entrypoint {entrypoint})
words=("$IMAGE" {words}"$@")

put() {{ # HOST: the one file, unless it is there
  local digest there='pod-agent.$$'
  digest=$(sha256sum < "$AGENT")
  ssh "$1" "[ \\"\\$(sha256sum 2> /dev/null < pod-agent)\\" = '$digest' ] ||
    {{ cat > $there && chmod 755 $there && mv $there pod-agent; }}" < "$AGENT"
}}

start() {{ # HOST: the secret goes through ssh's stdin, so that no ps shows it
  local before after
  printf -v before '%q ' "${{flags[@]}}"
  printf -v after '%q ' "${{words[@]}}"
  ssh -o ServerAliveInterval=30 "$1" "read -r RAY_AUTH_TOKEN && export RAY_AUTH_TOKEN && $before \\
    --volume \\"\\$HOME/pod-agent:/usr/local/bin/pod-agent:ro\\" $after" <<< "$RAY_AUTH_TOKEN"
}}

stop() {{ # each agent has 25 s to stop its part (AGENT_STOP_GRACE)
  for host in "${{HOSTS[@]}}"; do ssh "$host" docker stop --time 30 "$name" > /dev/null & done
}}

for host in "${{HOSTS[@]}}"; do put "$host"; done
trap 'trap "" INT TERM; stop' INT TERM
for host in "${{HOSTS[@]:1}}"; do start "$host" > "$host.log" 2>&1 & done
start "${{HOSTS[0]}}" &
head=$!
until wait "$head" && code=0 || {{ code=$?; ! kill -0 "$head" 2> /dev/null; }}; do :; done
wait || true  # for the workers, which leave with the head
exit "$code"
"""


def ssh(request: Request) -> list[StartFile]:
    """Return a loop over machines, with the one file copied to each."""
    preset = preset_of(request)
    folders = Folders(
        data="/root/data",
        code="/opt",
        checkpoints="/root/checkpoints",
        models="/root/huggingface",
        is_shared=False,
    )
    variables = job_variables(request, folders, restarted=False)
    given = "".join(f"  --env {shlex.quote(f'{k}={v}')}\n" for k, v in variables.items())
    setup = " && ".join([*setup_commands(preset, folders), *_into(preset.code)])
    script = shlex.quote(f'{setup} && exec pod-agent "$@"')
    text = _SSH.format(
        hosts=" ".join(f"10.0.0.{5 + number}" for number in range(request.nodes)),
        image=image_of(request),
        flags="--gpus all" if request.gpus else "",
        agent=request.agent or "pod-agent",
        about=preset.about[0].lower() + preset.about[1:],
        job=f"job=(\n{given})\n" if given else "",
        given='"${job[@]}" ' if given else "",
        entrypoint="bash" if setup else "pod-agent",
        words=f"-c {script} bash " if setup else "",
        name="loop.sh",
    )
    steps = ("export RAY_AUTH_TOKEN=$(openssl rand -hex 32)", "bash loop.sh")
    return [StartFile("loop.sh", text, (*_copied(request), *steps), is_program=True)]
