"""Known log lines with their cause and remedy, as rows, and how they are found in logs."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from agent.base.text import plain
from agent.base.value import Value
from agent.decisions.values import Known

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Remedy(Value):
    """A message of Ray, a framework or the kernel, with its cause and remedy."""

    key: str
    pattern: str
    """A regular expression for one line; its named groups fill the cause."""
    cause: str
    what_to_do: str
    signs: tuple[str, ...] = ()
    """Substrings, one of which each matching line has and no ordinary line has.

    Rows with signs are reported while the job runs: the search for them is cheap.
    """

    def found_in(self, line: str) -> re.Match[str] | None:
        """Return the match of its pattern in a line."""
        return _compiled(self.pattern).search(line)

    def known(self, line: str) -> Known | None:
        """Return a line with its cause and remedy if the pattern matches it."""
        match = self.found_in(line)
        if match is None:
            return None
        named = {name: text or "?" for name, text in match.groupdict().items()}
        cause, remedy = self.cause.format(**named), self.what_to_do.format(**named)
        return Known(self.key, line.strip(), cause, remedy, self in NOISE)


@cache
def _compiled(words: str) -> re.Pattern[str]:
    return re.compile(words)


JOB: tuple[Remedy, ...] = (
    Remedy(
        "reward server",
        r"Max retries exceeded with url: \S*reward\S* .{0,200}Connection refused"
        r"|Request error for \d+ times, returning None|reward_model_group is required",
        "the reward server cannot be reached from where the job asks it",
        "Give the job {{reward_url}}, not 127.0.0.1; reward-server.log says whether it died",
        signs=(
            "Max retries exceeded with url: ",
            "times, returning None",
            "reward_model_group is required",
        ),
    ),
    Remedy(
        "W&B key",
        r"api_key not configured \(no-tty\)|API key must (?:have|be) 40",
        "W&B has no key, or one of a wrong shape",
        "Set WANDB_API_KEY on every pod, or WANDB_MODE=offline",
        signs=("api_key not configured (no-tty)", "API key must "),
    ),
    Remedy(
        "gated model",
        r"Cannot access gated repo|GatedRepoError|You are trying to access a gated repo",
        "the model or data set is gated, and this account has no access yet",
        "Ask for access on its page, and set HF_TOKEN on every pod",
        signs=("Cannot access gated repo", "trying to access a gated repo"),
    ),
    Remedy(
        "no such model",
        r"Repository Not Found for url|RepositoryNotFoundError|is not a valid model identifier",
        "the model or data set is not there, or is private",
        "Correct AGENT_MODEL or the data's name, or set HF_TOKEN on every pod",
        signs=("Repository Not Found for url: ", "is not a valid model identifier"),
    ),
    Remedy(
        "port taken",
        r"[Aa]ddress already in use",
        "somebody listens already on a port that the job or a service wants",
        "End it (`ss -ltnp` names it), or choose another port",
    ),
    Remedy(
        "missing module",
        r"^(?:\([^)]*\) )?(?:E\s+)?ModuleNotFoundError: No module named '(?P<name>[^']+)'",
        "the job's Python has no module {name!r}",
        "Install it in the image, or bring it by AGENT_PREPARE_EACH or AGENT_RUNTIME_ENV (pip)",
    ),
)


MACHINE: tuple[Remedy, ...] = (
    Remedy(
        "NVML",
        r"Failed to initialize NVML: (?P<why>[\w /]+)",
        "the container lost its GPUs (NVML: {why})",
        "Restart the pod or container; if it comes back, change the machine",
        signs=("Failed to initialize NVML",),
    ),
    Remedy(
        "Xid",
        r"NVRM: Xid [^:]*:[^:]*:[^:]*: (?P<number>\d+)|GPU has fallen off the bus",
        "a GPU reported a fault of its own (Xid {number})",
        "Change the machine",
    ),
    Remedy(
        "HIP and CUDA",
        r"Inconsistant values found\. Please use either HIP_VISIBLE_DEVICES or CUDA",
        "two variables choose AMD GPUs in two ways",
        "Choose them by HIP_VISIBLE_DEVICES alone, before the agent starts",
        signs=("Inconsistant values found",),
    ),
    Remedy(
        "ROCR",
        r"(?:use|unset).{0,40}ROCR_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES.{0,60}(?:use|unset"
        r"|conflict)",
        "ROCR_VISIBLE_DEVICES is set inside the job, which Ray or the framework refuses",
        "Unset it there, and choose AMD GPUs by HIP_VISIBLE_DEVICES",
    ),
    Remedy(
        "GPU memory",
        r"CUDA out of memory|HIP out of memory|torch\.OutOfMemoryError|CUDA error: out of memory",
        "a GPU ran out of memory",
        "Take a smaller micro batch or context, a lower gpu_memory_utilization of the rollout "
        "engine, more GPUs, or offloading",
        signs=(
            "OutOfMemoryError: CUDA out",
            "OutOfMemoryError: HIP out",
            "RuntimeError: CUDA out of memory",
            "CUDA error: out of memory",
        ),
    ),
    Remedy(
        "GPU older than torch",
        r"no kernel image is available for execution on the device",
        "this torch was not built for this kind of GPU",
        "Take an image whose torch knows the GPU",
        signs=("no kernel image is available for execution",),
    ),
    Remedy(
        "driver older than CUDA",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old",
        "the host's NVIDIA driver is older than the image's CUDA",
        "Choose hosts with a newer driver, or an image with an older CUDA",
        signs=("CUDA driver version is insufficient", "NVIDIA driver on your system is too old"),
    ),
    Remedy(
        "memory",
        r"(?:Task was|worker\(s\) were) killed due to the node running low on memory"
        r"|[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure",
        "a node ran out of memory, and Ray killed a worker on it",
        "Give the pods more memory, or the job less to hold: fewer loader workers, less "
        "offloading, "
        "a smaller replay or rollout batch",
        signs=("Task was killed due to the node running low", "killed due to memory pressure"),
    ),
    Remedy(
        "threads",
        r"pthread_create failed: Resource temporarily unavailable|can't start new thread"
        r"|fork: retry: Resource temporarily unavailable",
        "no room for another thread or process (pids.max or `ulimit -u`)",
        "Raise it (`--pids-limit`, `ulimit -u`), or start fewer: "
        "RAY_worker_num_grpc_internal_threads"
        "=1, OMP_NUM_THREADS=1, AGENT_NUM_CPUS below the number of cores",
        signs=(
            "pthread_create failed",
            "RuntimeError: can't start new thread",
            "fork: retry: Resource",
        ),
    ),
    Remedy(
        "open files",
        r"Failed accept4: Too many open files|\[Errno 24\] Too many open files|Too many open files",
        "the limit of open files is reached",
        "Raise the hard limit of the container: `--ulimit nofile=1048576:1048576`",
        signs=("Failed accept4: Too many open files", "[Errno 24] Too many open files"),
    ),
    Remedy(
        "shared memory",
        r"Error while creating shared memory segment /dev/shm/nccl|posix_fallocate failed"
        r"|unable to (?:write|open shared memory) .{0,60}/?torch_|Bus error.{0,80}shared memory",
        "/dev/shm is full or too small",
        "Give the container more (`--shm-size`, shm_size, an emptyDir of medium Memory), and "
        "remove "
        "what a killed run left: `rm /dev/shm/nccl-*`",
        signs=("Error while creating shared memory segment", "posix_fallocate failed"),
    ),
    Remedy(
        "object store on disk",
        r"The object store is using (?P<where>\S+) instead of /dev/shm",
        "/dev/shm is too small, so that Ray keeps its objects on disk ({where})",
        "Give the container more: `--shm-size`, shm_size, an emptyDir of medium Memory",
    ),
    Remedy(
        "disk nearly full",
        r"(?P<disk>\S+) is over (?P<most>\d+)% full",
        "the disk of Ray's sessions ({disk}) is more than {most} % full: Ray spills no more "
        "objects",
        "Free it (old sessions, caches), or move Ray's sessions: AGENT_RAY_ARGS=--temp-dir=/larger",
        signs=("% full, available space",),
    ),
    Remedy(
        "disk full",
        r"\[Errno 28\]|No space left on device",
        "a disk is full",
        "Look which by `df -h` and `df -i`; checkpoints belong on a volume (AGENT_CHECKPOINTS), "
        "caches too (HF_HOME)",
        signs=("[Errno 28] No space left",),
    ),
)


NETWORK: tuple[Remedy, ...] = (
    Remedy(
        "no interface",
        r"no (?:NCCL_SOCKET_IFNAME|socket) interface found"
        r"|Unable to find address for: (?P<name>\S+)",
        "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names an interface that a node does not have",
        "Unset it: the agent sets it on each node to the interface of its address",
        signs=("no socket interface found", "RuntimeError: Unable to find address for: "),
    ),
    Remedy(
        "NCCL connect",
        r"socketStartConnect: Connect to (?P<peer>[^\s<]+)\S* failed",
        "NCCL could not reach {peer}: the interface is wrong, or its ports are closed",
        "Look at NCCL_SOCKET_IFNAME on each node (Instant Clusters: ens1, Global Networking: "
        "podnet1) "
        "and open all ports between the nodes",
        signs=("socketStartConnect: Connect to",),
    ),
    Remedy(
        "Gloo",
        r"Using the loopback address as fallback|connectFullMesh failed",
        "Gloo took this node's loopback, since its host name stands for no address of its own",
        "Leave GLOO_SOCKET_IFNAME to the agent, or set it to the interface between the nodes",
        signs=("connectFullMesh failed",),
    ),
    Remedy(
        "NCCL timeout",
        r"Watchdog caught collective operation timeout|NCCL.{0,40}timed out|Timeout at NCCL work",
        "a collective operation waited for a rank that never came",
        "Look for the rank that is silent first: it died, ran out of memory or is stuck; "
        "`ray stack` or py-spy shows where",
        signs=("Watchdog caught collective operation timeout",),
    ),
    Remedy(
        "node address",
        r"This node has an IP address of (?P<ip>\S+?),? and Ray expects this IP address",
        "a process took {ip} for its node's address, which Ray does not know, or its raylet died",
        "Set AGENT_NODE_IP to the address between the nodes; if it is that already, raylet.out "
        "says "
        "why Ray ended",
        signs=("and Ray expects this IP address",),
    ),
    Remedy(
        "vLLM address",
        r"Every node should have a unique IP address",
        "VLLM_HOST_IP is the same on several nodes",
        "Unset it: the agent sets it on each node to that node's address",
        signs=("Every node should have a unique IP address",),
    ),
    Remedy(
        "local address",
        r"Cannot assign requested address",
        "a service was told to listen on, or to come from, an address that this node does not "
        "have, "
        "or the kernel ran out of outgoing ports",
        "Unset AGENT_NODE_IP, or choose one of the addresses that `pod-agent doctor` shows",
    ),
    Remedy(
        "GCS lost",
        r"Failed to connect to GCS within \d+ seconds",
        "Ray's GCS on the head was gone for too long",
        "Look at the head: its agent.log, gcs_server.out, and whether its memory ran out",
        signs=("Failed to connect to GCS within",),
    ),
    Remedy(
        "marked dead",
        r"mistakenly been marked as dead by the GCS|has been marked dead because the detector",
        "a node missed its health checks: overloaded, frozen, or not reached by the head",
        "Open the node manager's port from head to workers (AGENT_PORT + 1); for slow nodes raise "
        "RAY_health_check_failure_threshold and RAY_health_check_timeout_ms on the head",
        signs=("mistakenly been marked as dead", "has been marked dead because the detector"),
    ),
    Remedy(
        "GCS not reached",
        r"Unable to connect to GCS at (?P<where>\S+?)\.?(?:\s|$)",
        "GCS does not answer at {where}: not there yet, or its port is closed",
        "Open Ray's port (AGENT_RAY_PORT, 6379) on the head for the workers",
    ),
    Remedy(
        "proxy",
        r"HTTP proxy.{0,80}(?:502|503|504)|Proxy(?:Error| CONNECT).{0,80}",
        "a proxy stands between, also where none should",
        "Name the nodes' network in no_proxy, or unset the proxy for the job",
    ),
)


RAY: tuple[Remedy, ...] = (
    Remedy(
        "version mismatch",
        r"Version mismatch: The cluster was started with",
        "Ray or Python differ between nodes or between the job and its cluster, if only in the "
        "patch",
        "Use one image on all nodes, and the Python of that image for the job",
        signs=("Version mismatch: The cluster was started with",),
    ),
    Remedy(
        "session",
        r"Session name \S+ does not match persisted value",
        "an older GCS, or a Redis behind it, owns Ray's port",
        "End it (`ray stop --force` on that machine), or move ours: AGENT_RAY_PORT",
    ),
    Remedy(
        "running already",
        r"Ray is trying to start at \S+, but is already running",
        "another Ray lives on this machine, or left its address file behind",
        "End it (`ray stop --force`), or move ours: AGENT_RAY_PORT, AGENT_PORT",
    ),
    Remedy(
        "ports collide",
        r"Ray component \S+ is trying to use a port number (?P<port>\d+)|No available ports",
        "Ray's ports collide with each other, or with the ports that the kernel gives away",
        "Move ours by AGENT_PORT and AGENT_RAY_PORT; keep them out of ip_local_port_range",
    ),
    Remedy(
        "registration",
        r"have not registered (?:to raylet )?within (?:the )?timeout",
        "Ray's workers started too slowly: a slow disk or image, or they died at their start",
        "Raise RAY_worker_register_timeout_seconds (60) on every node; python-core-worker-*.log "
        "says "
        "whether they died",
    ),
    Remedy(
        "runtime env agent",
        r"exited immediately because the runtime env agent timed out",
        "Ray's runtime_env agent did not answer in time, and Ray ended with it",
        "Look at runtime_env_agent.log: mostly an address that is not this node's, or no memory",
    ),
    Remedy(
        "job supervisor",
        r"Job supervisor actor failed to start within",
        "Ray found no room for the job's own driver",
        "Ask for no resources of the entrypoint; look whether the head has free CPUs and memory",
    ),
    Remedy(
        "dashboard agent",
        r"No available agent to submit job",
        "the dashboard's agent on the head is not up, or died of a limit",
        "If it stays: `pod-agent doctor` on the head (processes, open files), dashboard_agent.log",
    ),
    Remedy(
        "socket path",
        r"AF_UNIX path length cannot exceed",
        "Ray's temp dir has too long a path for its sockets",
        "Use a short one: AGENT_RAY_ARGS=--temp-dir=/x",
    ),
    Remedy(
        "zombies",
        r"Stopped only \d+ out of \d+ Ray processes",
        "processes that ended are not reaped, since PID 1 of this container is no init",
        "Start the agent as the container's first process, or the container with `--init`",
    ),
    Remedy(
        "leftover address",
        r"Module: http does not have ClientBuilder|Found multiple active Ray instances",
        "RAY_ADDRESS leads to another Ray, or several run on this machine",
        "Unset RAY_ADDRESS in the job; end the other Ray, or name the address in the job",
        signs=("http does not have ClientBuilder", "Found multiple active Ray instances"),
    ),
    Remedy(
        "no such resource",
        r"No available node types can fulfill resource request (?P<asked>\{[^}]*\})",
        "no node of Ray has what the job asks for ({asked})",
        "Compare with `pod-agent status`: GPUs that Ray does not see are counted by AGENT_NUM_GPUS",
        signs=("No available node types can fulfill resource request",),
    ),
    Remedy(
        "too few GPUs",
        r"Total available GPUs (?P<has>[\d.]+) is less than total desired GPUs (?P<wants>[\d.]+)",
        "the job wants {wants} GPUs, and Ray has {has}",
        "Correct the job's nnodes and GPUs per node, or EXPECTED_WORKERS, so that all have joined",
        signs=("is less than total desired GPUs",),
    ),
    Remedy(
        "runtime_env conflict",
        r"Failed to merge the Job's runtime env .{0,400}because of a conflict",
        "job and driver set the same key of the runtime_env",
        "Set it in one place: variables in the pods' environment, the rest in AGENT_RUNTIME_ENV",
        signs=("Failed to merge the Job's runtime env",),
    ),
    Remedy(
        "upload too large",
        r"HTTPRequestEntityTooLarge",
        "the working_dir is too large for Ray's dashboard",
        "Exclude .git, data and weights in the runtime_env's `excludes`, or put the code in the "
        "image",
    ),
)


NOISE: tuple[Remedy, ...] = (
    Remedy(
        "metrics exporter",
        r"Failed to establish connection to the (?:event\+)?metrics exporter agent",
        "Ray could not start its metrics early enough, which nothing here needs",
        "Look past it",
        signs=("metrics exporter agent",),
    ),
    Remedy(
        "metrics not exported",
        r"Export metrics to agent failed",
        "Ray could not deliver its metrics, which nothing here needs",
        "Look past it",
        signs=("Export metrics to agent failed",),
    ),
    Remedy(
        "observability pubsub",
        r"Failed to connect to the observability pubsub at address",
        "gRPC asked a slow DNS for a name; the agent gives Ray numbers",
        "If boots are slow, mend the DNS of the pods",
        signs=("observability pubsub at address",),
    ),
)


CAUSES = (*MACHINE, *NETWORK, *RAY, *JOB)
"""The most specific tables first: of several rows in one log the first one counts."""


def explain(logs: tuple[tuple[str, str], ...]) -> tuple[str, Known] | None:
    """Return the first known line in the ends of logs, (name, text) in order, with its log."""
    for name, text in logs:
        lines = [line for line in text.splitlines() if not is_noise(line)]
        for row in CAUSES:
            for line in reversed(lines):
                known = row.known(line)
                if known is not None:
                    return name, known
    return None


def is_noise(line: str) -> bool:
    """Return whether a line is a known false alarm."""
    return any(row.found_in(line) for row in NOISE)


LIVE: tuple[Remedy, ...] = (*NOISE, *(row for row in CAUSES if row.signs))
"""Noise first: a line that it explains is no cause."""
KEYS = frozenset(row.key for row in LIVE)
_MAX_LINES = 100
"""How many lines with a row's sign are checked in one piece of output."""
_LONGEST = 2_000


def find_known_lines(lines: Sequence[bytes], reported: Iterable[str] = ()) -> list[Known]:
    """Return the known lines among these, each row once, without rows already reported."""
    piece, found, seen = b"\n".join(lines), [], {*reported}
    for row in LIVE:
        if row.key in seen or not any(sign in piece for sign in _signs(row)):
            continue
        known = _first(row, lines)
        if known is not None:
            found.append(known)
    return found


def _first(row: Remedy, lines: Sequence[bytes]) -> Known | None:
    with_signs = (line for line in lines if any(sign in line for sign in _signs(row)))
    for _, raw in zip(range(_MAX_LINES), with_signs, strict=False):
        line = plain(raw[:_LONGEST].decode(errors="replace")).strip()
        known = row.known(line)
        if known is not None and (known.is_noise or not is_noise(line)):
            return known
    return None


@cache
def _signs(row: Remedy) -> tuple[bytes, ...]:
    return tuple(sign.encode() for sign in row.signs)
