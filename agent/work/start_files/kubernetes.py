"""The manifests for Kubernetes: LeaderWorkerSet, Kubeflow's two kinds of job, and KubeRay."""

from __future__ import annotations

import json

from agent.work.start_files.request import (
    Folders,
    Request,
    StartFile,
    comment,
    image_of,
    indented,
    job_variables,
    preset_of,
    recipe_line,
    setup_commands,
    yaml_env,
)

_SHARED = "/workspace"
_FETCHED = "/opt/agent/pod-agent"
_NAMES = {"lws": "lws.yaml", "trainjob": "kubeflow-trainjob.yaml", "pytorchjob": "pytorchjob.yaml"}


def kubernetes(request: Request) -> list[StartFile]:
    """Return the manifest of a LeaderWorkerSet, a TrainJob or a PyTorchJob."""
    name = _NAMES[request.variant]
    text = {"lws": _lws, "trainjob": _trainjob, "pytorchjob": _pytorchjob}[request.variant](request)
    literal = '--from-literal=ray-auth-token="$(openssl rand -hex 32)"'
    steps = [f"kubectl create secret generic pod-agent {literal}", f"kubectl apply -f {name}"]
    if not request.url:
        steps.insert(0, "# make the claim rl-workspace, and copy dist/pod-agent into its root")
    return [StartFile(name, text, tuple(steps))]


def _folders() -> Folders:
    return Folders(
        *(f"{_SHARED}/data", "/opt", f"{_SHARED}/checkpoints", f"{_SHARED}/agent-logs"),
        f"{_SHARED}/huggingface",
    )


def _needs_claim(request: Request) -> bool:
    """Return whether data, checkpoints or the one file are on a volume."""
    return request.recipe != "rehearsal" or not request.url


def _pod(request: Request, *, container: str, readiness: bool = False, never: bool = True) -> str:
    """Return a pod's spec; every pod of a run has the same."""
    folders = _folders()
    claim = _needs_claim(request)
    variables = job_variables(request, folders, restarted=request.variant == "lws")
    if not claim:
        variables.pop("AGENT_LOG_DIR", None)
    if request.variant == "lws":
        variables = {"AGENT_ON_DONE": "hold", **variables}
    variables = {
        "AGENT_STOP_GRACE": "90s",
        "AGENT_WAIT_HEAD": "30m",
        "AGENT_WAIT_WORKERS": "30m",
        **variables,
    }
    resources = (
        f"{{limits: {{nvidia.com/gpu: {request.gpus}}}}}"
        if request.gpus
        else "{limits: {cpu: 8, memory: 32Gi}}"
    )
    mounts = ["{name: shm, mountPath: /dev/shm}"]
    volumes = [_SHM.format(size="128Gi" if request.gpus else "8Gi")]
    if claim:
        mounts.append(f"{{name: workspace, mountPath: {_SHARED}}}")
        volumes.append(_CLAIM)
    if request.url:
        mounts.append("{name: agent, mountPath: /opt/agent}")
        volumes.append("- name: agent\n  emptyDir: {}\n")
    parts = [
        f"containers:\n  - name: {container}\n",
        f"    image: {image_of(request)}   # change (2 of 3): the framework's image\n",
        f"    resources: {resources}   # change (3 of 3): what each pod has\n",
        indented(_about(request), 4),
        indented(command_lines(request, folders, _agent_path(request)), 4),
        "    env:\n",
        yaml_env(variables, 6) + "\n",
        indented(_SECRETS, 6),
        indented(_PROBES + (_READINESS if readiness else ""), 4),
        "    volumeMounts:\n",
        "".join(f"      - {mount}\n" for mount in mounts),
        _INIT.format(image=image_of(request), url=json.dumps(request.url), sha=request.sha256)
        if request.url
        else "",
        "restartPolicy: Never\n" if never else "",
        "terminationGracePeriodSeconds: 120  # above AGENT_STOP_GRACE\n",
        "volumes:\n",
        indented("".join(volumes), 2),
    ]
    return "".join(parts)


def _agent_path(request: Request) -> str:
    return _FETCHED if request.url else request.agent or f"{_SHARED}/pod-agent"


def command_lines(request: Request, folders: Folders, agent: str) -> str:
    """Return a container's command; what the image lacks is installed before."""
    preset = preset_of(request)
    setup = list(setup_commands(preset, folders))
    if preset.code:
        setup.append(f"cd {preset.code}")
    if not setup:
        return f"command: [sh, {agent}]\nargs: [run]\n"
    lines = indented("\n".join([*setup, f'exec sh {agent} "$@"']), 4)
    return f"command:\n  - bash\n  - -ec\n  - |\n{lines}\n  - bash\nargs: [run]\n"


def _about(request: Request) -> str:
    """Return what a manifest is, what it needs once, and how it is sent off."""
    preset, name = preset_of(request), _NAMES[request.variant]
    claim = (
        " a claim `rl-workspace` that every pod can mount (ReadWriteMany),"
        + ("" if request.url else " with dist/pod-agent in its root,")
        + " and"
        if _needs_claim(request)
        else ""
    )
    lines = [
        comment(f"{preset.about}. In the same namespace, once:{claim}"),
        "#",
        "#   kubectl create secret generic pod-agent \\",
        '#     --from-literal=ray-auth-token="$(openssl rand -hex 32)"',
        f"#   kubectl apply -f {name}",
        "#",
        f"# `{recipe_line(request)}`",
        "# shows the command of the recipe, and why. A command of your own goes into",
        "# args: [run, --, python3, …]",
    ]
    return "\n".join(lines) + "\n"


_INIT = """\
initContainers:
  - name: fetch-agent
    image: {image}
    command: [python3, -c]
    args:
      - |
        import hashlib, pathlib, sys, urllib.request
        url, digest, target = sys.argv[1:]
        content = urllib.request.urlopen(url).read()
        if hashlib.sha256(content).hexdigest() != digest:
            sys.exit(f"{{url}} has another SHA-256 than {{digest}}")
        pathlib.Path(target).write_bytes(content)
      - {url}
      - "{sha}"
      - /opt/agent/pod-agent
    volumeMounts:
      - {{name: agent, mountPath: /opt/agent}}
"""
_SHM = """\
- name: shm  # the default of 64 MiB is too small for Ray and NCCL; counts as memory
  emptyDir: {{medium: Memory, sizeLimit: {size}}}
"""
_CLAIM = """\
- name: workspace
  persistentVolumeClaim: {claimName: rl-workspace}
"""
_SECRETS = """\
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: pod-agent, key: ray-auth-token}}
- name: WANDB_API_KEY
  valueFrom: {secretKeyRef: {name: pod-agent, key: wandb-api-key, optional: true}}
"""
_PROBES = """\
ports:
  - {name: agent, containerPort: 8266}
# A worker's port answers on the pod's address once the head's name resolves. Until then
# AGENT_WAIT_HEAD decides, so the probe has to wait longer.
startupProbe:
  httpGet: {path: /livez, port: agent}
  periodSeconds: 10
  failureThreshold: 200
livenessProbe:
  httpGet: {path: /livez, port: agent}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 6
"""
_READINESS = """\
readinessProbe:
  httpGet: {path: /readyz, port: agent}
"""

_LWS = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {recipe}
spec:
  leaderWorkerTemplate:
    size: {nodes}   # change (1 of 3): pods, the head among them
    # No leaderTemplate: all pods are alike. Their containers are always started again, whatever
    # they end with. So a pod is held when the job has ended, with all else stopped, until you
    # delete the LeaderWorkerSet; a lost run (75) or a missed deadline (69) starts the group again.
    restartPolicy: RecreateGroupOnPodRestart
    workerTemplate:
      spec:
{pod}  replicas: 1
  startupPolicy: LeaderCreated  # workers start beside the head; LWS makes the headless service
"""


def _lws(request: Request) -> str:
    pod = indented(_pod(request, container="agent", readiness=True, never=False), 8)
    return _LWS.format(recipe=request.recipe, nodes=request.nodes, pod=pod)


_TRAINJOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata:
  name: pod-agent-{recipe}
  labels: {{trainer.kubeflow.org/framework: torch}}
spec:
  mlPolicy:
    numNodes: {nodes}   # change (1 of 3): pods
    torch: {{}}   # gives each pod its PET_* variables
  template:
    spec:
      replicatedJobs:
        - name: node
          template:
            metadata:
              labels: {{trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
            spec:
              backoffLimit: 0  # a lost node ends the run for all, with the head's reason
              template:
                spec:
{pod}---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: {recipe}
spec:
  runtimeRef:
    apiGroup: trainer.kubeflow.org
    kind: TrainingRuntime
    name: pod-agent-{recipe}
"""


def _trainjob(request: Request) -> str:
    pod = indented(_pod(request, container="node"), 18)
    return _TRAINJOB.format(recipe=request.recipe, nodes=request.nodes, pod=pod)


_PYTORCHJOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: {recipe}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: {workers}   # change (1 of 3): workers; the master is the head
      restartPolicy: Never
      template: &pod
        spec:
          # The operator wants the name `pytorch`. No readiness probe: the master's name is in DNS
          # only while its pod counts as ready.
{pod}    Master:
      replicas: 1
      restartPolicy: Never
      template: *pod
  runPolicy:
    cleanPodPolicy: None  # workers leave by themselves with the master's code, and keep their logs
    backoffLimit: 0
"""


def _pytorchjob(request: Request) -> str:
    pod = indented(_pod(request, container="pytorch", never=False), 10)
    return _PYTORCHJOB.format(recipe=request.recipe, workers=request.nodes - 1, pod=pod)


_KUBERAY = """\
apiVersion: ray.io/v1
kind: RayJob
metadata:
  name: {recipe}
spec:
  rayClusterSpec:
    workerGroupSpecs:
      - groupName: gpu
        replicas: {workers}   # change (1 of 3): pods beside the head, as EXPECTED_WORKERS below
        template:
          spec:
            containers:
              - name: ray-worker
                image: &image {image}   # change (2 of 3): the framework's image
                resources: &size {size}   # change (3 of 3): what each pod has
                # The job runs in the environment of these pods, not in the submitter's.
                env: &env
{cluster_env}
                  - name: WANDB_API_KEY
                    valueFrom:
                      secretKeyRef: {{name: pod-agent, key: wandb-api-key, optional: true}}
                  # What a stopped job may take for its last checkpoint; Ray's own choice is 3 s.
                  - name: RAY_JOB_STOP_WAIT_TIME_S
                    value: "75"
                volumeMounts: &mounts
                  - {{name: workspace, mountPath: /workspace}}
                  - {{name: tmp, mountPath: /tmp}}
            # Unpacks the one file into the pod's /tmp: the job may run programs of the agent by
            # their path, on every pod.
            initContainers: &unpack
              - name: unpack-agent
                image: *image
                command: [sh, {agent}, --version]
                volumeMounts: *mounts
            volumes: &volumes
              - name: workspace
                persistentVolumeClaim: {{claimName: rl-workspace}}
              - name: tmp
                emptyDir: {{}}
{about}
    headGroupSpec:
      rayStartParams: {{}}
      template:
        spec:
          containers:
            - name: ray-head
              image: *image
              resources: *size
              env: *env
              volumeMounts: *mounts
          initContainers: *unpack
          volumes: *volumes
  submitterPodTemplate:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 120
      containers:
        - name: submitter
          image: *image
          resources: {{limits: {{cpu: 2, memory: 4Gi}}}}
          env:
{env}
{command}
          volumeMounts: *mounts
          ports:
            - {{name: agent, containerPort: 8266}}
          livenessProbe:
            httpGet: {{path: /livez, port: agent}}
            periodSeconds: 20
            timeoutSeconds: 5
            failureThreshold: 6
      volumes: *volumes
  submitterConfig: {{backoffLimit: 0}}  # a second submitter would only follow the same job again
  shutdownAfterJobFinishes: true  # the GPUs are given back; logs and checkpoints stay on the claim
"""


def kuberay(request: Request) -> list[StartFile]:
    """Return a RayJob, whose submitter is the agent."""
    preset = preset_of(request)
    folders = Folders(
        *(f"{_SHARED}/data", _SHARED, f"{_SHARED}/checkpoints", f"{_SHARED}/agent-logs"),
        f"{_SHARED}/huggingface",
    )
    agent = request.agent or f"{_SHARED}/pod-agent"
    variables = job_variables(request, folders, restarted=False)
    cluster: dict[str, str] = {
        name: variables.pop(name) for name in ("HF_HOME", "PYTHONPATH") if name in variables
    }
    variables = {
        "EXPECTED_WORKERS": str(request.nodes - 1),
        "AGENT_STOP_GRACE": "90s",
        **variables,
    }
    gpus = f"cpu: 64, memory: 512Gi, nvidia.com/gpu: {request.gpus}"
    about = comment(
        f"""{preset.about}. KubeRay starts and stops Ray; the agent submits the job, follows it,
        and ends with its exit code. In the same namespace, once: a claim `rl-workspace` that every
        pod can mount (ReadWriteMany), with dist/pod-agent in its root. Then: kubectl create -f
        rayjob.yaml""",
        """With Ray 2.52 and KubeRay 1.6 or newer, `rayVersion` and `authOptions: {mode: token}`
        here turn Ray's token on; the operator makes it, and gives it to the submitter's pod.""",
        f"""`{recipe_line(request)}` shows the command of the recipe, and why. A command of your
        own: args: [run, --, python3, …]""",
    )
    text = _KUBERAY.format(
        recipe=request.recipe,
        workers=request.nodes - 1,
        image=image_of(request),
        size=f"{{limits: {{{gpus if request.gpus else 'cpu: 8, memory: 32Gi'}}}}}",
        cluster_env=yaml_env(cluster or {"HF_HOME": f"{_SHARED}/huggingface"}, 18),
        agent=agent,
        about=indented(about, 4),
        env=yaml_env(variables, 12),
        command=indented(command_lines(request, folders, agent), 10).rstrip(),
    )
    steps = ("# make the claim rl-workspace, and copy dist/pod-agent into its root",)
    return [StartFile("rayjob.yaml", text, (*steps, "kubectl create -f rayjob.yaml"))]
