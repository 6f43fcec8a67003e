"""Every variable that a user can set: type, default and meaning, one entry each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, overload

from agent.base.value import Value
from agent.settings import values as v

T = TypeVar("T")


class Variable(Value):
    """The declaration of one variable."""

    name: str
    read: Callable[[str], object]
    """Converts the text; raises ValueError with what it expects."""
    meaning: str
    default_text: str
    """The default as the tables show it."""


_VARIABLES: list[Variable] = []
"""The variables in the order of the fields of Settings."""


@overload
def var(
    name: str, read: Callable[[str], T], meaning: str, *, default_text: str = ""
) -> T | None: ...
@overload
def var(
    name: str, read: Callable[[str], T], meaning: str, *, default: str, default_text: str = ""
) -> T: ...
def var(
    name: str,
    read: Callable[[str], T],
    meaning: str,
    *,
    default: str | None = None,
    default_text: str = "",
) -> Any:
    """Declare a variable: the value is its field's default."""
    value = None if default is None else read(default)
    _VARIABLES.append(Variable(name, read, meaning, default_text or default or ""))
    return value


class Settings(Value, kw_only=True):
    """The validated values of all variables; None means unset."""

    ray_worker: bool | None = var(
        "RAY_WORKER",
        v.yes_or_no,
        "`1` worker, `0` head",
        default_text="the platform's rank; else owner of HEAD_POD_ID or AGENT_HEAD; else head",
    )
    head_pod_id: str | None = var(
        "HEAD_POD_ID", v.pod_id, "RunPod id of the head pod; the same on every pod"
    )
    expected_workers: int | None = var(
        "EXPECTED_WORKERS",
        v.whole(0, 10_000),
        "workers the head waits for",
        default_text="platform's nodes - 1; 1 with only HEAD_POD_ID; 0 on one machine",
    )
    head: str | None = var(
        "AGENT_HEAD", v.reachable_host, "head host or IP, where the platform does not provide it"
    )
    node_ip: str | None = var(
        "AGENT_NODE_IP", v.ip, "this node's address", default_text="by route to the head"
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
        "minimum of workers for `AGENT_PARTIAL=proceed`",
        default_text="required with proceed",
    )
    job: str | None = var(
        "AGENT_JOB",
        v.nonempty_text,
        "recipe name, or `none`: boot and stay",
        default_text="rehearsal",
    )
    job_args: tuple[str, ...] = var(
        "AGENT_JOB_ARGS", v.shell_words, "extra arguments of the recipe's command", default=""
    )
    job_retries: int = var(
        "AGENT_JOB_RETRIES",
        v.whole(0, 1000),
        "further attempts at the job after a loss",
        default="0",
    )
    launcher: Literal["ray", "torchrun"] | None = var(
        "AGENT_LAUNCHER",
        v.one_of("ray", "torchrun"),
        "`ray`, or `torchrun`: one on each node, without Ray",
        default_text="the recipe's, else ray",
    )
    model_revision: str | None = var(
        "AGENT_MODEL_REVISION",
        v.nonempty_text,
        "branch, tag or commit of AGENT_MODEL on the hub",
        default_text="newest",
    )
    run_name: str | None = var(
        "AGENT_RUN_NAME",
        v.nonempty_text,
        "name of the run in W&B (its group is the run id) and title of the page",
        default_text="recipe, model and run id",
    )
    runtime_env: str | None = var(
        "AGENT_RUNTIME_ENV", v.nonempty_text, "Ray runtime_env: path to YAML/JSON, or JSON"
    )
    working_dir: str | None = var(
        "AGENT_WORKING_DIR",
        v.nonempty_text,
        "directory to upload as the job's working_dir",
        default_text="none: the code is in the image",
    )
    stall: float = var(
        "AGENT_STALL",
        v.duration_or_off,
        "time without progress after which stacks are logged, and after a lost node the attempt "
        "is lost; `0` off",
        default="30m",
    )
    notice_signal: str | None = var(
        "AGENT_NOTICE_SIGNAL",
        v.signal_name,
        "signal such as SIGUSR1 on which the job saves and goes on, sent to it before a node is "
        "taken away and before a stop; `off`",
        default_text="the recipe's (trl-grpo: SIGUSR1), else off",
    )
    preflight: Literal["nccl"] | None = var(
        "AGENT_PREFLIGHT",
        v.one_of("nccl"),
        "`nccl`: an all-reduce of all GPUs before the job",
        default_text="off",
    )
    wandb_api_key: v.Secret | None = var(
        "WANDB_API_KEY", v.secret, "turns W&B logging on in the recipes"
    )
    debug_ray: Literal["0", "1", "post-mortem"] = var(
        "DEBUG_RAY",
        v.one_of("0", "1", "post-mortem"),
        "`1` legacy Ray debugger; `post-mortem`",
        default="0",
    )
    model: str | None = var(
        "AGENT_MODEL",
        v.nonempty_text,
        "model of a recipe: Hugging Face id or path",
        default_text="needed by the recipes",
    )
    train_data: str | None = var(
        "AGENT_TRAIN_DATA",
        v.nonempty_text,
        "training data of a recipe: path or id, as its framework reads it",
        default_text="needed by the recipes",
    )
    eval_data: str | None = var(
        "AGENT_EVAL_DATA", v.nonempty_text, "evaluation data of a recipe, in the same form"
    )
    checkpoints: str | None = var(
        "AGENT_CHECKPOINTS",
        v.absolute_path,
        "folder of a recipe's checkpoints, which it resumes from",
        default_text="`<AGENT_LOG_DIR>/checkpoints/<recipe>-<hash of model and data>`",
    )
    tensor_parallel: int | None = var(
        "AGENT_TENSOR_PARALLEL",
        v.whole(1, 1024),
        "GPUs of one rollout engine",
        default_text="by size; `1` where the size is unknown",
    )
    reward_model: str | None = var(
        "AGENT_REWARD_MODEL",
        v.nonempty_text,
        "reward model that the recipe's framework loads on the training GPUs: id or path",
    )
    reward: str | None = var(
        "AGENT_REWARD",
        v.nonempty_text,
        "`builtin`, `off`, an http(s) URL, or the shell command of a reward server",
        default_text="what the job needs; off with a reward model",
    )
    reward_port: int = var("AGENT_REWARD_PORT", v.port, "the reward server's port", default="5000")
    reward_path: str = var("AGENT_REWARD_PATH", v.url_path, "its path", default="/get_reward")
    reward_token: v.Secret | None = var(
        "AGENT_REWARD_TOKEN",
        v.secret,
        "a secret that the bundled reward server asks for (`Authorization: Bearer`)",
    )
    services: str | None = var(
        "AGENT_SERVICES",
        v.nonempty_text,
        "path to a TOML file of further services and prepare steps",
    )
    prepare: str | None = var(
        "AGENT_PREPARE", v.nonempty_text, "shell command on the head before the job"
    )
    prepare_each: str | None = var(
        "AGENT_PREPARE_EACH", v.nonempty_text, "shell command on every node before it joins the job"
    )
    resources: Mapping[str, float] = var(
        "AGENT_RESOURCES",
        v.resources,
        "custom Ray resources (JSON)",
        default="{}",
        default_text="none",
    )
    num_gpus: int | None = var(
        "AGENT_NUM_GPUS",
        v.whole(0, 1024),
        "GPUs that Ray, or torchrun, may use here",
        default_text="detected",
    )
    num_cpus: int | None = var(
        "AGENT_NUM_CPUS",
        v.whole(1, 100_000),
        "CPUs that Ray may use here; for torchrun without GPUs: processes",
        default_text="detected, within the pod's limits",
    )
    ray_args: tuple[str, ...] = var(
        "AGENT_RAY_ARGS",
        v.shell_words,
        "further flags of `ray start`, such as `--temp-dir=/mnt/nvme` or `--object-store-memory=N`",
        default="",
    )
    ray_port: int | None = var(
        "AGENT_RAY_PORT", v.port, "Ray's GCS, or torchrun's rendezvous", default_text="6379"
    )
    dashboard_port: int | None = var(
        "AGENT_DASHBOARD_PORT", v.port, "Ray's dashboard", default_text="8265"
    )
    port: int | None = var(
        "AGENT_PORT", v.port, "the agent's own; Ray's inner ports follow it", default_text="8266"
    )
    dashboard_host: str | None = var(
        "AGENT_DASHBOARD_HOST",
        v.host,
        "address on which Ray's dashboard listens",
        default_text="0.0.0.0 with a token; 127.0.0.1 without",
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
        "AGENT_STOP_GRACE", v.duration, "total time that a stop may take", default="25s"
    )
    log_dir: str = var(
        "AGENT_LOG_DIR",
        v.nonempty_text,
        "holds `<run id>/` with run.json and `<node>/` with logs and outcome.json",
        default="./agent-logs",
    )
    log: Literal["auto", "console", "json"] = var(
        "AGENT_LOG",
        v.one_of("auto", "console", "json"),
        "`auto`, `console`, `json`",
        default="auto",
    )
    log_mode: Literal["private", "group", "umask"] = var(
        "AGENT_LOG_MODE",
        v.one_of("private", "group", "umask"),
        "who may read the folder of a run: its user, its group too, or as the umask has it",
        default="private",
    )
    on_done: Literal["exit", "hold", "stop-pod", "terminate-pod"] | None = var(
        "AGENT_ON_DONE",
        v.one_of("exit", "hold", "stop-pod", "terminate-pod"),
        "after the job's verdict: `exit`, `hold`, `stop-pod`, `terminate-pod`",
        default_text="exit; hold on RunPod as the container's first process",
    )
    runpod_api_key: v.Secret | None = var(
        "RUNPOD_API_KEY",
        v.secret,
        "key of RunPod's API, for `stop-pod`, `terminate-pod` and the pod's price",
        default_text="none; RunPod sets one of the pod; RUNPOD_API_KEY_FILE precedes it",
    )
    runpod_api: str = var(
        "AGENT_RUNPOD_API",
        v.base_url,
        "base URL of RunPod's API v2",
        default="https://api.runpod.io",
    )
    price_per_hour: float | None = var(
        "AGENT_PRICE_PER_HOUR",
        v.amount(100_000.0, "dollars above 0, as a number alone, such as 2.79"),
        "price of one node in dollars an hour, for messages about cost",
        default_text="on RunPod the pod's published cost",
    )
    max_hours: float | None = var(
        "AGENT_MAX_HOURS",
        v.amount(8760.0, "hours above 0 and of at most a year, such as 12 or 0.5"),
        "hours that a run may use, all attempts and waits together; then its job is stopped",
    )
    rerun: bool = var(
        "AGENT_RERUN",
        v.yes_or_no,
        "`1`: a restarted container runs a finished job again",
        default="0",
    )
    ray_auth_token: v.Secret | None = var(
        "RAY_AUTH_TOKEN",
        v.secret,
        "the cluster's one secret: guards Ray and the agent's port",
        default_text="off, with a warning",
    )
    allow_insecure: bool = var(
        "AGENT_ALLOW_INSECURE", v.yes_or_no, "`1` allows what is refused as unsafe", default="0"
    )


SECRETS = ("WANDB_API_KEY", "RAY_AUTH_TOKEN", "RUNPOD_API_KEY", "AGENT_REWARD_TOKEN")
"""Variables whose value is never shown; `<NAME>_FILE` may name a file instead."""

SET_BY_PLATFORM = ("RUNPOD_API_KEY",)
"""Secrets that a platform sets on every pod: a file that the user names precedes them."""

TOKEN_MODE = "RAY_AUTH_MODE"  # noqa: S105 - a variable's name
"""Ray's variable that turns token authentication on."""

TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - a variable's name
"""Ray's variable for a file that holds the token."""

VARIABLES = {about.name: about for about in _VARIABLES}
"""Every variable by its name, in the order of the table."""

GROUPS = {
    "RAY_WORKER": "nodes",
    "AGENT_JOB": "job",
    "AGENT_MODEL": "recipe",
    "AGENT_REWARD": "rewards, services and preparation",
    "AGENT_RESOURCES": "resources and ports",
    "AGENT_WAIT_HEAD": "deadlines",
    "AGENT_LOG_DIR": "logs",
    "AGENT_ON_DONE": "end and costs",
    "RAY_AUTH_TOKEN": "security",
}
"""Headings for the table of variables, each with the first variable below it."""

FIELD_OF = dict(zip(VARIABLES, Settings.__struct_fields__, strict=True))
"""From a variable's name to the field that holds its value."""

SECRET_FILE_VARIABLES = {
    **{f"{name}_FILE": name for name in SECRETS},
    TOKEN_PATH: "RAY_AUTH_TOKEN",
}
"""Variables that name a file, and the secret that the file holds."""

KNOWN_NAMES = (*FIELD_OF, *SECRET_FILE_VARIABLES)
"""Every name that is read."""

FOREIGN_NAMES = ("RAY_DEBUG", "RAY_AUTH_MODE", "RAY_ADDRESS", "WANDB_API_KEY_FILE", "WANDB_MODE")
"""Variables of Ray and W&B that resemble known names; they are not misspellings."""
