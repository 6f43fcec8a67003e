"""Every variable that a user can set: type, default and meaning, one entry each.

The field `stall` declares AGENT_STALL; the fields in `_WITHOUT_PREFIX` have names without AGENT_.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, overload

from agent.base.value import Value
from agent.settings import values as v

T = TypeVar("T")


class Variable(Value):
    """The declaration of one variable."""

    read: Callable[[str], object]  # converts the text; raises ValueError with what it expects
    meaning: str
    default_text: str  # the default as the tables show it


_VARIABLES: list[Variable] = []


@overload
def var(read: Callable[[str], T], meaning: str, *, shown: str = "") -> T | None: ...
@overload
def var(read: Callable[[str], T], meaning: str, default: str, *, shown: str = "") -> T: ...
def var(
    read: Callable[[str], T], meaning: str, default: str | None = None, *, shown: str = ""
) -> Any:
    """Declare the variable of a field; without a default its value is None when it is unset."""
    _VARIABLES.append(Variable(read, meaning, shown or default or ""))
    return None if default is None else read(default)


class Settings(Value, kw_only=True):
    """The validated values of all variables, AGENT_HEAD as `head`; None means unset."""

    ray_worker: bool | None = var(
        v.yes_or_no,
        "`1` worker, `0` head",
        shown="the platform's rank; else owner of HEAD_POD_ID or AGENT_HEAD; else head",
    )
    head_pod_id: str | None = var(v.pod_id, "RunPod id of the head pod; the same on every pod")
    expected_workers: int | None = var(
        v.whole(0, 10_000),
        "workers the head waits for",
        shown="platform's nodes - 1; 1 with only HEAD_POD_ID; 0 on one machine",
    )
    head: str | None = var(
        v.reachable_host, "head host or IP, where the platform does not provide it"
    )
    group: str | None = var(
        v.text, "this node's group of `[groups.NAME]`, or `trainer`", shown="by its rank"
    )
    node_ip: str | None = var(v.ip, "this node's address", shown="by route to the head")
    partial: Literal["fail", "proceed"] = var(
        v.one_of("fail", "proceed"), "workers missing at the deadline: `fail` or `proceed`", "fail"
    )
    min_workers: int | None = var(
        v.whole(0, 10_000),
        "minimum of workers for `AGENT_PARTIAL=proceed`",
        shown="required with proceed",
    )
    job: str | None = var(v.text, "recipe name, or `none`: boot and stay", shown="rehearsal")
    job_args: tuple[str, ...] = var(v.shell_words, "extra arguments of the recipe's command", "")
    job_retries: int = var(v.whole(0, 1000), "further attempts at the job after a loss", "0")
    launcher: Literal["ray", "torchrun", "node"] | None = var(
        v.one_of("ray", "torchrun", "node"),
        "`ray`; without Ray `torchrun`, one on each node, or `node`: the command once on each "
        "node, with NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT and NPROC_PER_NODE",
        shown="the recipe's, else ray",
    )
    model_revision: str | None = var(
        v.revision, "branch, tag or commit of AGENT_MODEL on the hub", shown="newest"
    )
    run_name: str | None = var(
        v.text,
        "name of the run in W&B (its group is the run id) and title of the page",
        shown="recipe, model and run id",
    )
    runtime_env: str | None = var(v.text, "Ray runtime_env: path to YAML/JSON, or JSON")
    working_dir: str | None = var(
        v.text,
        "directory to upload as the job's working_dir",
        shown="none: the code is in the image",
    )
    stall: float | Literal["auto"] = var(
        v.duration_or_auto,
        "when a job without progress is examined. `auto`: no step for three times the median "
        "step, at least 5 min and half as long again as the longest so far; where steps are not "
        "known, no output, no finished Ray task and idle GPUs for 30 min. A duration replaces "
        "both; `0` off",
        "auto",
    )
    on_stall: Literal["log", "retry", "stop"] | None = var(
        v.one_of("log", "retry", "stop"),
        "what follows once two examinations agree: `log`, `retry` (the attempt is lost; set by "
        "hand and without a retry left, the run ends with 75) or `stop` (the run ends with 75)",
        shown="retry while AGENT_JOB_RETRIES allows one, else log",
    )
    first_step: float | None = var(
        v.duration,
        "how long the first step may take, with loading and compiling. Unset: before any step of "
        "the run, GPUs at work raise no alarm, as the job may print no steps",
        shown="60m",
    )
    notice_signal: str | None = var(
        v.signal_name,
        "signal such as SIGUSR1 on which the job saves and goes on, sent to it before a node is "
        "taken away and before a stop; `off`",
        shown="the recipe's (trl-grpo: SIGUSR1), else off",
    )
    preflight: Literal["nccl"] | None = var(
        v.one_of("nccl"), "`nccl`: an all-reduce of all GPUs before the job", shown="off"
    )
    wandb_api_key: v.Secret | None = var(v.secret, "turns W&B logging on in the recipes")
    debug_ray: Literal["0", "1", "post-mortem"] = var(
        v.one_of("0", "1", "post-mortem"), "`1` legacy Ray debugger; `post-mortem`", "0"
    )
    model: str | None = var(
        v.text, "model of a recipe: Hugging Face id or path", shown="needed by the recipes"
    )
    train_data: str | None = var(
        v.text,
        "training data of a recipe: path or id, as its framework reads it",
        shown="needed by the recipes",
    )
    eval_data: str | None = var(v.text, "evaluation data of a recipe, in the same form")
    checkpoints: str | None = var(
        v.absolute_path,
        "folder of a recipe's checkpoints, which it resumes from",
        shown="`<AGENT_LOG_DIR>/checkpoints/<recipe>-<hash of model and data>`",
    )
    tensor_parallel: int | None = var(
        v.whole(1, 1024),
        "GPUs of one rollout engine",
        shown="by size; `1` where the size is unknown",
    )
    lora_rank: int | None = var(
        v.whole(1, 4096),
        "rank of the adapters (LoRA) that verl, TRL, and OpenRLHF's SFT, RM and DPO train instead "
        "of the whole model",
        shown="off",
    )
    rollout: Literal["vllm", "sglang"] | None = var(
        v.one_of("vllm", "sglang"), "engines of verl's recipes: `vllm` or `sglang`", shown="vllm"
    )
    backend: Literal["fsdp", "megatron"] | None = var(
        v.one_of("fsdp", "megatron"), "how verl's recipes train: `fsdp` or `megatron`", shown="fsdp"
    )
    reward_model: str | None = var(
        v.text, "reward model that the recipe's framework loads on the training GPUs: id or path"
    )
    reward: str | None = var(
        v.text,
        "`builtin`, `judge` (the bundled server asks `[services.judge]`), `off`, an http(s) URL, "
        "or the shell command of a reward server",
        shown="what the job needs; off with a reward model",
    )
    reward_port: int | None = var(
        v.port,
        "the reward server's port",
        shown="5000; the bundled server's under Slurm by the job's id",
    )
    reward_path: str = var(v.url_path, "its path", "/get_reward")
    reward_token: v.Secret | None = var(
        v.secret, "a secret that the bundled reward server asks for (`Authorization: Bearer`)"
    )
    judge_url: str | None = var(
        v.judge_url,
        "with `AGENT_REWARD=judge`: an OpenAI-compatible server outside, instead of "
        "`[services.judge]`",
    )
    judge_model: str | None = var(
        v.text, "its model, as that server names it", shown="the first that it lists"
    )
    judge_key: v.Secret | None = var(
        v.secret, "the key of the judge's server (`Authorization: Bearer`); only it gets it"
    )
    services: str | None = var(v.text, "path to a TOML file of further services and prepare steps")
    prepare: str | None = var(v.text, "shell command on the head before the job")
    prepare_each: str | None = var(v.text, "shell command on every node before it joins the job")
    cache_dir: str | None = var(
        v.shared_folder_or_off,
        "folder on a disk that outlives the nodes, which seeds each node's compile caches and "
        "takes back what is new; `off`",
        shown="`compile-caches` beside the checkpoints, where that is a volume",
    )
    resources: Mapping[str, float] = var(
        v.resources, "custom Ray resources (JSON)", "{}", shown="none"
    )
    num_gpus: int | None = var(
        v.whole(0, 1024),
        "GPUs that Ray or the launcher may use here, with those of services that have `gpus`",
        shown="detected",
    )
    num_cpus: int | None = var(
        v.whole(1, 100_000),
        "CPUs that Ray may use here; without Ray and GPUs: processes of the node",
        shown="detected, within the pod's limits",
    )
    ray_args: tuple[str, ...] = var(
        v.shell_words,
        "further flags of `ray start`, such as `--temp-dir=/mnt/nvme` or `--object-store-memory=N`",
        "",
    )
    ray_port: int | None = var(
        v.port, "Ray's GCS; without Ray the port at which the job's processes meet", shown="6379"
    )
    dashboard_port: int | None = var(v.port, "Ray's dashboard", shown="8265")
    port: int | None = var(v.port, "the agent's own; Ray's inner ports follow it", shown="8266")
    dashboard_host: str | None = var(
        v.host,
        "address on which Ray's dashboard listens",
        shown="0.0.0.0 with a token; 127.0.0.1 without",
    )
    wait_head: float = var(v.duration, "deadline for the head, from the start", "10m")
    wait_workers: float = var(v.duration, "deadline for the workers", "10m")
    wait_reward: float = var(v.duration, "deadline for the reward server", "10m")
    wait_prepare: float = var(v.duration, "deadline of prepare steps", "2h")
    node_grace: float = var(v.duration, "how long a needed node may be lost", "60s")
    head_grace: float = var(v.duration, "how long workers wait for a silent head", "5m")
    stop_grace: float = var(v.duration, "total time that a stop may take", "25s")
    log_dir: str = var(
        v.text,
        "holds `<run id>/` with run.json and `<node>/` with logs and outcome.json",
        "./agent-logs",
    )
    log: Literal["auto", "console", "json"] = var(
        v.one_of("auto", "console", "json"),
        "`auto`; `console`: all lines, as agent.log has them; `json`",
        "auto",
    )
    log_mode: Literal["private", "group", "umask"] = var(
        v.one_of("private", "group", "umask"),
        "who may read the folder of a run: its user, its group too, or as the umask has it",
        "private",
    )
    on_done: Literal["exit", "hold", "stop-pod", "terminate-pod"] | None = var(
        v.one_of("exit", "hold", "stop-pod", "terminate-pod"),
        "after the job's verdict: `exit`, `hold`, `stop-pod`, `terminate-pod`",
        shown="exit; hold on RunPod as the container's first process",
    )
    runpod_api_key: v.Secret | None = var(
        v.secret,
        "key of RunPod's API, for `stop-pod`, `terminate-pod` and the pod's price",
        shown="none; RunPod sets one of the pod; RUNPOD_API_KEY_FILE precedes it",
    )
    runpod_api: str = var(v.base_url, "base URL of RunPod's API v2", "https://api.runpod.io")
    price_per_hour: float | None = var(
        v.amount(100_000.0, "dollars above 0, as a number alone, such as 2.79"),
        "price of one node in dollars an hour, for messages about cost",
        shown="on RunPod the pod's published cost, asked with RUNPOD_API_KEY",
    )
    max_hours: float | None = var(
        v.amount(8760.0, "hours above 0 and of at most a year, such as 12 or 0.5"),
        "hours that a run may use, all attempts and waits together; then its job is stopped",
    )
    max_cost: float | None = var(
        v.amount(1e9, "dollars above 0, as a number alone, such as 500"),
        "dollars that a run may cost, all nodes, attempts and waits together; then its job is "
        "stopped. It needs a price",
    )
    notify: v.Secret | None = var(
        v.notify_urls,
        "secret URLs, with spaces between them, to which the head posts JSON at the start, a loss, "
        "a stall, advice to end the run, and the end",
        shown="none",
    )
    rerun: bool = var(v.yes_or_no, "`1`: a restarted container runs a finished job again", "0")
    ray_auth_token: v.Secret | None = var(
        v.secret,
        "the cluster's one secret: guards Ray and the agent's port",
        shown="off, with a warning",
    )
    allow_insecure: bool = var(v.yes_or_no, "`1` allows what is refused as unsafe", "0")


SECRETS = (
    *("WANDB_API_KEY", "RAY_AUTH_TOKEN", "RUNPOD_API_KEY", "AGENT_REWARD_TOKEN", "AGENT_JUDGE_KEY"),
    "AGENT_NOTIFY",
)
"""Variables whose value is never shown; `<NAME>_FILE` may name a file instead."""
SET_BY_PLATFORM = ("RUNPOD_API_KEY",)
"""Secrets that a platform sets on every pod: a file that the user names precedes them."""
TOKEN_MODE = "RAY_AUTH_MODE"  # noqa: S105 - Ray's variable that turns token authentication on
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - Ray's variable for a file with the token

_WITHOUT_PREFIX = {
    *("ray_worker", "head_pod_id", "expected_workers", "debug_ray"),
    *("wandb_api_key", "runpod_api_key", "ray_auth_token"),
}
FIELD_OF = {
    field.upper() if field in _WITHOUT_PREFIX else f"AGENT_{field.upper()}": field
    for field in Settings.__struct_fields__
}
"""From a variable's name to the field that holds its value."""
VARIABLES = dict(zip(FIELD_OF, _VARIABLES, strict=True))  # in the order of the tables

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

SECRET_FILE_VARIABLES = {f"{name}_FILE": name for name in SECRETS} | {TOKEN_PATH: "RAY_AUTH_TOKEN"}
"""Variables that name a file, and the secret that the file holds."""

KNOWN_NAMES = (*FIELD_OF, *SECRET_FILE_VARIABLES)  # every name that is read
FOREIGN_NAMES = ("RAY_DEBUG", "RAY_AUTH_MODE", "RAY_ADDRESS", "WANDB_MODE")
"""Variables of Ray and W&B that resemble known names; they are not misspellings."""
SET_FOR_JOBS = ("AGENT_ATTEMPT", "AGENT_ATTEMPT_ID", "AGENT_PROGRESS_FILE")
"""Set by the agent, never read."""


def secret_texts(settings: Settings, names: Iterable[str] = SECRETS) -> dict[str, str]:
    """Return those of these secrets that are set, by the variable's name."""
    values = {name: getattr(settings, FIELD_OF[name]) for name in names}
    return {name: secret.reveal() for name, secret in values.items() if secret is not None}
