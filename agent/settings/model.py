"""Every variable that a user can set: its type, default and meaning, one line of table each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from agent.settings import values as v


def _one_of(*choices: str) -> BeforeValidator:
    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return word

    return BeforeValidator(read)


def var(name: str, meaning: str, *, default: Any = None, shown: str = "") -> Any:  # noqa: ANN401 - pydantic's own signature
    """Declare a variable: its name, meaning, and how its default reads in a table."""
    return Field(
        default,
        validation_alias=name,
        description=meaning,
        json_schema_extra={"shown": shown},
    )


Debug = Annotated[Literal["0", "1", "post-mortem"], _one_of("0", "1", "post-mortem")]
Launcher = Annotated[Literal["ray", "torchrun"], _one_of("ray", "torchrun")]
Partial = Annotated[Literal["fail", "proceed"], _one_of("fail", "proceed")]
LogStyle = Annotated[Literal["auto", "console", "json"], _one_of("auto", "console", "json")]
OnDone = Annotated[
    Literal["exit", "hold", "stop-pod", "terminate-pod"],
    _one_of("exit", "hold", "stop-pod", "terminate-pod"),
]


class Settings(BaseModel):
    """What was asked for, validated; nothing here is guessed or looked up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ray_worker: v.YesNo | None = var(
        "RAY_WORKER",
        "`1` worker, `0` head",
        shown="the platform's rank; else owner of HEAD_POD_ID or AGENT_HEAD; else head",
    )
    head_pod_id: v.PodId | None = var(
        "HEAD_POD_ID", "RunPod id of the head pod; the same on every pod"
    )
    expected_workers: Annotated[int, v.whole(0, 10_000)] | None = var(
        "EXPECTED_WORKERS",
        "workers the head waits for",
        shown="platform's nodes - 1; 1 with only HEAD_POD_ID; 0 on one machine",
    )
    debug_ray: Debug = var(
        "DEBUG_RAY", "`1` legacy Ray debugger; `post-mortem`", default="0", shown="0"
    )
    wandb_api_key: SecretStr | None = var("WANDB_API_KEY", "turns W&B logging on in the recipes")
    ray_auth_token: SecretStr | None = var(
        "RAY_AUTH_TOKEN",
        "the cluster's one secret: guards Ray and the agent's port",
        shown="off, with a warning",
    )
    job: v.Text | None = var(
        "AGENT_JOB", "recipe name, or `none`: boot and stay", shown="rehearsal"
    )
    job_args: v.Words = var("AGENT_JOB_ARGS", "extra arguments of the recipe's command", default=())
    job_retries: Annotated[int, v.whole(0, 1000)] = var(
        "AGENT_JOB_RETRIES", "resubmissions after a retryable loss", default=0, shown="0"
    )
    launcher: Launcher = var("AGENT_LAUNCHER", "`ray` or `torchrun`", default="ray", shown="ray")
    runtime_env: v.Text | None = var(
        "AGENT_RUNTIME_ENV", "Ray runtime_env: path to YAML/JSON, or JSON"
    )
    working_dir: v.Text | None = var(
        "AGENT_WORKING_DIR",
        "directory to upload as the job's working_dir",
        shown="none: the code is in the image",
    )
    reward: v.Text | None = var(
        "AGENT_REWARD",
        "`builtin`, `off`, an http(s) URL, or the shell command of a reward server",
        shown="what the job needs",
    )
    reward_port: v.Port = var(
        "AGENT_REWARD_PORT", "the reward server's port", default=5000, shown="5000"
    )
    reward_path: v.UrlPath = var(
        "AGENT_REWARD_PATH", "its path", default="/get_reward", shown="/get_reward"
    )
    services: v.Text | None = var(
        "AGENT_SERVICES", "path to a TOML file of further services and prepare steps"
    )
    prepare: v.Text | None = var("AGENT_PREPARE", "shell command on the head before the job")
    prepare_each: v.Text | None = var(
        "AGENT_PREPARE_EACH", "shell command on every node before it joins the job"
    )
    head: v.HeadHost | None = var("AGENT_HEAD", "head host or IP where no platform tells")
    node_ip: v.Ip | None = var("AGENT_NODE_IP", "this node's address", shown="by route to the head")
    resources: v.Resources = var(
        "AGENT_RESOURCES", "custom Ray resources (JSON)", default={}, shown="none"
    )
    num_gpus: Annotated[int, v.whole(0, 1024)] | None = var(
        "AGENT_NUM_GPUS", "GPUs that Ray may use here", shown="detected"
    )
    num_cpus: Annotated[int, v.whole(1, 100_000)] | None = var(
        "AGENT_NUM_CPUS", "CPUs that Ray may use here", shown="detected, limits of the pod obeyed"
    )
    ray_port: v.OptionalPort = var("AGENT_RAY_PORT", "Ray's GCS", shown="6379")
    dashboard_port: v.OptionalPort = var("AGENT_DASHBOARD_PORT", "Ray's dashboard", shown="8265")
    port: v.OptionalPort = var(
        "AGENT_PORT", "the agent's own; Ray's inner ports follow it", shown="8266"
    )
    dashboard_host: v.Host | None = var(
        "AGENT_DASHBOARD_HOST",
        "where Ray's dashboard listens",
        shown="0.0.0.0 with a token; 127.0.0.1 without",
    )
    wait_head: v.Duration = var(
        "AGENT_WAIT_HEAD", "deadline for the head, from the start", default=600.0, shown="10m"
    )
    wait_workers: v.Duration = var(
        "AGENT_WAIT_WORKERS", "deadline for the workers", default=600.0, shown="10m"
    )
    wait_reward: v.Duration = var(
        "AGENT_WAIT_REWARD", "deadline for the reward server", default=600.0, shown="10m"
    )
    wait_prepare: v.Duration = var(
        "AGENT_WAIT_PREPARE", "deadline of prepare steps", default=7200.0, shown="2h"
    )
    node_grace: v.Duration = var(
        "AGENT_NODE_GRACE", "how long a needed node may be lost", default=60.0, shown="60s"
    )
    stop_grace: v.Duration = var(
        "AGENT_STOP_GRACE", "what a stop may take, all in all", default=25.0, shown="25s"
    )
    partial: Partial = var(
        "AGENT_PARTIAL",
        "workers missing at the deadline: `fail` or `proceed`",
        default="fail",
        shown="fail",
    )
    min_workers: Annotated[int, v.whole(0, 10_000)] | None = var(
        "AGENT_MIN_WORKERS", "the least to proceed with", shown="required with proceed"
    )
    log_dir: v.Text = var(
        "AGENT_LOG_DIR",
        "holds `<run id>/<node>/` with logs and outcome.json",
        default="./agent-logs",
        shown="./agent-logs",
    )
    log: LogStyle = var("AGENT_LOG", "`auto`, `console`, `json`", default="auto", shown="auto")
    on_done: OnDone | None = var(
        "AGENT_ON_DONE",
        "`exit`, `hold`, `stop-pod`, `terminate-pod`",
        shown="exit; hold on RunPod as the container's first process",
    )
    allow_insecure: v.YesNo = var(
        "AGENT_ALLOW_INSECURE",
        "`1` insists on what is refused as unsafe",
        default=False,
        shown="0",
    )


SECRETS = ("WANDB_API_KEY", "RAY_AUTH_TOKEN")
"""Variables whose value is never shown, and which may also come from `<NAME>_FILE`."""

TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - a variable's name
"""Ray's own name for a file that holds the token."""

FIELD_OF = {str(field.validation_alias): name for name, field in Settings.model_fields.items()}
"""From a variable's name to the field that holds its value."""

FORMS_OF_SECRETS = {
    **{f"{name}_FILE": name for name in SECRETS},
    TOKEN_PATH: "RAY_AUTH_TOKEN",
}
"""Variables that name a file, and the secret that the file holds."""

KNOWN = (*FIELD_OF, *FORMS_OF_SECRETS)
"""Every name that is read."""
