"""Every variable that a user can set: its type, default and meaning, one line of table each."""

from __future__ import annotations

from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from agent.base.value import dataclass
from agent.settings import values as v

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


@dataclass(frozen=True)
class Variable:
    """What is known of a variable apart from its value."""

    name: str
    read: Callable[[str], object]
    """Makes its value of its text; raises ValueError with what it expected."""
    meaning: str
    shown: str
    """How its default reads in a table."""


@overload
def var(name: str, read: Callable[[str], T], meaning: str, *, shown: str = "") -> T | None: ...
@overload
def var(
    name: str, read: Callable[[str], T], meaning: str, *, default: str, shown: str = ""
) -> T: ...
def var(
    name: str,
    read: Callable[[str], T],
    meaning: str,
    *,
    default: str | None = None,
    shown: str = "",
) -> Any:
    """Declare a variable: how it is read, what it means, its default and how that reads."""
    value = None if default is None else read(default)
    about = Variable(name, read, meaning, shown or default or "")
    return field(default_factory=lambda: value, metadata={"variable": about})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was asked for, validated; nothing here is guessed or looked up."""

    ray_worker: bool | None = var(
        "RAY_WORKER",
        v.yes_or_no,
        "`1` worker, `0` head",
        shown="the platform's rank; else owner of HEAD_POD_ID or AGENT_HEAD; else head",
    )
    head_pod_id: str | None = var(
        "HEAD_POD_ID", v.pod_id, "RunPod id of the head pod; the same on every pod"
    )
    expected_workers: int | None = var(
        "EXPECTED_WORKERS",
        v.whole(0, 10_000),
        "workers the head waits for",
        shown="platform's nodes - 1; 1 with only HEAD_POD_ID; 0 on one machine",
    )
    debug_ray: Literal["0", "1", "post-mortem"] = var(
        "DEBUG_RAY",
        v.one_of("0", "1", "post-mortem"),
        "`1` legacy Ray debugger; `post-mortem`",
        default="0",
    )
    wandb_api_key: v.Secret | None = var(
        "WANDB_API_KEY", v.secret, "turns W&B logging on in the recipes"
    )
    ray_auth_token: v.Secret | None = var(
        "RAY_AUTH_TOKEN",
        v.secret,
        "the cluster's one secret: guards Ray and the agent's port",
        shown="off, with a warning",
    )
    job: str | None = var(
        "AGENT_JOB", v.some_text, "recipe name, or `none`: boot and stay", shown="rehearsal"
    )
    job_args: tuple[str, ...] = var(
        "AGENT_JOB_ARGS", v.words, "extra arguments of the recipe's command", default=""
    )
    job_retries: int = var(
        "AGENT_JOB_RETRIES",
        v.whole(0, 1000),
        "further attempts at the job after a loss",
        default="0",
    )
    model: str | None = var(
        "AGENT_MODEL",
        v.some_text,
        "model of a recipe: Hugging Face id or path",
        shown="needed by the recipes",
    )
    train_data: str | None = var(
        "AGENT_TRAIN_DATA",
        v.some_text,
        "training data of a recipe: path or id, as its framework reads it",
        shown="needed by the recipes",
    )
    eval_data: str | None = var(
        "AGENT_EVAL_DATA", v.some_text, "evaluation data of a recipe, likewise"
    )
    checkpoints: str | None = var(
        "AGENT_CHECKPOINTS",
        v.absolute_path,
        "folder of a recipe's checkpoints, which it resumes from",
        shown="`<AGENT_LOG_DIR>/checkpoints/<recipe>-<hash of model and data>`",
    )
    tensor_parallel: int = var(
        "AGENT_TENSOR_PARALLEL", v.whole(1, 1024), "GPUs of one rollout engine", default="1"
    )
    launcher: Literal["ray", "torchrun"] | None = var(
        "AGENT_LAUNCHER",
        v.one_of("ray", "torchrun"),
        "`ray`, or `torchrun`: one on each node, without Ray",
        shown="the recipe's, else ray",
    )
    runtime_env: str | None = var(
        "AGENT_RUNTIME_ENV", v.some_text, "Ray runtime_env: path to YAML/JSON, or JSON"
    )
    working_dir: str | None = var(
        "AGENT_WORKING_DIR",
        v.some_text,
        "directory to upload as the job's working_dir",
        shown="none: the code is in the image",
    )
    reward: str | None = var(
        "AGENT_REWARD",
        v.some_text,
        "`builtin`, `off`, an http(s) URL, or the shell command of a reward server",
        shown="what the job needs",
    )
    reward_port: int = var("AGENT_REWARD_PORT", v.port, "the reward server's port", default="5000")
    reward_path: str = var("AGENT_REWARD_PATH", v.url_path, "its path", default="/get_reward")
    services: str | None = var(
        "AGENT_SERVICES", v.some_text, "path to a TOML file of further services and prepare steps"
    )
    prepare: str | None = var(
        "AGENT_PREPARE", v.some_text, "shell command on the head before the job"
    )
    prepare_each: str | None = var(
        "AGENT_PREPARE_EACH", v.some_text, "shell command on every node before it joins the job"
    )
    head: str | None = var(
        "AGENT_HEAD", v.other_nodes_host, "head host or IP where no platform tells"
    )
    preflight: Literal["nccl"] | None = var(
        "AGENT_PREFLIGHT",
        v.one_of("nccl"),
        "`nccl`: an all-reduce of all GPUs before the job",
        shown="off",
    )
    stall: float = var(
        "AGENT_STALL",
        v.duration_or_off,
        "without progress for so long: stacks are logged; after a lost node the attempt is lost; "
        "`0` off",
        default="30m",
    )
    node_ip: str | None = var(
        "AGENT_NODE_IP", v.ip, "this node's address", shown="by route to the head"
    )
    resources: Mapping[str, float] = var(
        "AGENT_RESOURCES", v.resources, "custom Ray resources (JSON)", default="{}", shown="none"
    )
    num_gpus: int | None = var(
        "AGENT_NUM_GPUS",
        v.whole(0, 1024),
        "GPUs that Ray, or torchrun, may use here",
        shown="detected",
    )
    num_cpus: int | None = var(
        "AGENT_NUM_CPUS",
        v.whole(1, 100_000),
        "CPUs that Ray may use here; for torchrun without GPUs: processes",
        shown="detected, limits of the pod obeyed",
    )
    ray_args: tuple[str, ...] = var(
        "AGENT_RAY_ARGS",
        v.words,
        "further flags of `ray start`, such as `--temp-dir=/mnt/nvme` or `--object-store-memory=N`",
        default="",
    )
    ray_port: int | None = var(
        "AGENT_RAY_PORT", v.port, "Ray's GCS, or torchrun's rendezvous", shown="6379"
    )
    dashboard_port: int | None = var(
        "AGENT_DASHBOARD_PORT", v.port, "Ray's dashboard", shown="8265"
    )
    port: int | None = var(
        "AGENT_PORT", v.port, "the agent's own; Ray's inner ports follow it", shown="8266"
    )
    dashboard_host: str | None = var(
        "AGENT_DASHBOARD_HOST",
        v.host,
        "where Ray's dashboard listens",
        shown="0.0.0.0 with a token; 127.0.0.1 without",
    )
    wait_head: float = var(
        "AGENT_WAIT_HEAD", v.duration, "deadline for the head, from the start", default="10m"
    )
    wait_workers: float = var(
        "AGENT_WAIT_WORKERS", v.duration, "deadline for the workers", default="10m"
    )
    wait_reward: float = var(
        "AGENT_WAIT_REWARD", v.duration, "deadline for the reward server", default="10m"
    )
    wait_prepare: float = var(
        "AGENT_WAIT_PREPARE", v.duration, "deadline of prepare steps", default="2h"
    )
    node_grace: float = var(
        "AGENT_NODE_GRACE", v.duration, "how long a needed node may be lost", default="60s"
    )
    head_grace: float = var(
        "AGENT_HEAD_GRACE", v.duration, "how long workers wait for a silent head", default="5m"
    )
    stop_grace: float = var(
        "AGENT_STOP_GRACE", v.duration, "what a stop may take, all in all", default="25s"
    )
    partial: Literal["fail", "proceed"] = var(
        "AGENT_PARTIAL",
        v.one_of("fail", "proceed"),
        "workers missing at the deadline: `fail` or `proceed`",
        default="fail",
    )
    min_workers: int | None = var(
        "AGENT_MIN_WORKERS",
        v.whole(0, 10_000),
        "the least to proceed with",
        shown="required with proceed",
    )
    log_dir: str = var(
        "AGENT_LOG_DIR",
        v.some_text,
        "holds `<run id>/` with run.json and `<node>/` with logs and outcome.json",
        default="./agent-logs",
    )
    log: Literal["auto", "console", "json"] = var(
        "AGENT_LOG",
        v.one_of("auto", "console", "json"),
        "`auto`, `console`, `json`",
        default="auto",
    )
    on_done: Literal["exit", "hold", "stop-pod", "terminate-pod"] | None = var(
        "AGENT_ON_DONE",
        v.one_of("exit", "hold", "stop-pod", "terminate-pod"),
        "`exit`, `hold`, `stop-pod`, `terminate-pod`",
        shown="exit; hold on RunPod as the container's first process",
    )
    allow_insecure: bool = var(
        "AGENT_ALLOW_INSECURE", v.yes_or_no, "`1` insists on what is refused as unsafe", default="0"
    )


SECRETS = ("WANDB_API_KEY", "RAY_AUTH_TOKEN")
"""Variables whose value is never shown, and which may also come from `<NAME>_FILE`."""

TOKEN_MODE = "RAY_AUTH_MODE"  # noqa: S105 - a variable's name
"""Ray's own name for whether it asks for the token."""

TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - a variable's name
"""Ray's own name for a file that holds the token."""

_DECLARED: list[tuple[str, Variable]] = [(f.name, f.metadata["variable"]) for f in fields(Settings)]

VARIABLES = {about.name: about for _, about in _DECLARED}
"""Every variable by its name, in the order of the table."""

FIELD_OF = {about.name: name for name, about in _DECLARED}
"""From a variable's name to the field that holds its value."""

FORMS_OF_SECRETS = {
    **{f"{name}_FILE": name for name in SECRETS},
    TOKEN_PATH: "RAY_AUTH_TOKEN",
}
"""Variables that name a file, and the secret that the file holds."""

KNOWN = (*FIELD_OF, *FORMS_OF_SECRETS)
"""Every name that is read."""

THEIRS = ("RAY_DEBUG", "RAY_AUTH_MODE", "RAY_ADDRESS", "WANDB_API_KEY_FILE", "WANDB_MODE")
"""Names of Ray's and W&B's own that resemble ours: never taken for a slip of the hand."""
