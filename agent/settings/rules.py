"""Rules that involve several settings, such as contradictions between them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agent.base.errors import Problem
from agent.base.ports import DEFAULTS
from agent.base.text import is_public, nearly_equal
from agent.settings.jobs import (
    BY_NAME,
    NO_JOB,
    RECIPES,
    launcher,
    needs_reward_url,
    recipe_info,
    reward_model,
)
from agent.settings.model import FIELD_OF, Settings, secret_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.base.ports import Ports

_HUB_ID = re.compile(r"\w[\w.-]{0,95}(?:/\w[\w.-]{0,95})?", re.ASCII)
_EXPECTED = {
    "AGENT_MODEL": "a model, by its Hugging Face id or an absolute path",
    "AGENT_TRAIN_DATA": "training data, by an absolute path or as its framework names it",
}

TRAINER = "trainer"
"""The name of the nodes that are in no group (AGENT_GROUP)."""
JUDGE = "judge"
BUNDLED = ("builtin", JUDGE)
"""The values of AGENT_REWARD that start the bundled reward server."""
_ANSWERS = {
    **dict.fromkeys(("1", "on", "true"), "builtin"),
    **dict.fromkeys(("0", "no", "none", "false"), "off"),
}
"""Words that are no value of AGENT_REWARD, and what they probably mean."""
_BARE_ADDRESS = re.compile(r"[\w.-]+:\d+(?:/\S*)?")
_NO_MODEL = re.compile(r"https?://|[^/].*\s")
"""The address of a model's page, or an id with a space in it."""
_UNREPLACED = re.compile(r"\$?\{\{\s*(\S+)\s*\}\}")
_IN_HEADERS = ("RAY_AUTH_TOKEN", "AGENT_REWARD_TOKEN", "AGENT_JUDGE_KEY")
NEEDS_PRICE = "AGENT_PRICE_PER_HOUR beside it, the price of one node"
POD_ACTIONS = {"stop-pod": "stop", "terminate-pod": "terminate"}
"""The values of AGENT_ON_DONE that end a pod, and the action of RunPod's API."""


def contradictions(settings: Settings, command: tuple[str, ...] | None) -> list[Problem]:
    """Return a problem for every contradiction between settings."""
    return [
        *_check_job(settings, command),
        *_check_recipe(settings, command),
        *_check_recipe_options(settings, command),
        *_check_reward(settings, command),
        *_check_secrets(settings),
        *_check_cost(settings),
        *_check_workers(settings),
        *_check_ray_args(settings.ray_args),
        *_check_launcher(settings),
        *_check_debugger(settings),
        *_check_judge(settings),
    ]


def is_hub_id(model: str) -> bool:
    """Return whether a model may be a hub id such as `org/name`, rather than a path."""
    return _HUB_ID.fullmatch(model) is not None


def is_url(reward: str) -> bool:
    """Return whether AGENT_REWARD is a URL rather than a command."""
    return reward.lower().startswith(("http://", "https://"))


def _check_job(settings: Settings, command: tuple[str, ...] | None) -> Iterator[Problem]:
    if command is not None:
        if not any(word.strip() for word in command):
            yield Problem("--", "nothing after it", "the job's command, such as -- python train.py")
        if any("\0" in word or word.encode(errors="ignore").decode() != word for word in command):
            yield Problem("--", "a word that is not text", "words in UTF-8, without NUL bytes")
        if settings.job is not None:
            got = f"{settings.job!r} beside a command after --"
            yield Problem("AGENT_JOB", got, "one of the two: unset it")
    if settings.job_args and (command is not None or settings.job == NO_JOB):
        expected = "a recipe in AGENT_JOB, or unset"
        yield Problem("AGENT_JOB_ARGS", "arguments without a recipe", expected)

    # Is it a recipe?
    if settings.job is not None and settings.job not in (*BY_NAME, NO_JOB):
        meant = next((name for name in BY_NAME if nearly_equal(settings.job, name)), "")
        hint = f"{meant} (did you mean that?), or one of " if meant else ""
        own_command = "(a command of your own goes after --: pod-agent run -- CMD ARG…)"
        names = ", ".join((*BY_NAME, NO_JOB))
        yield Problem("AGENT_JOB", repr(settings.job), f"{hint}{names} {own_command}")


def _check_recipe(settings: Settings, command: tuple[str, ...] | None) -> Iterator[Problem]:
    revision = settings.model_revision
    if revision is not None and (settings.model is None or not is_hub_id(settings.model)):
        got = f"{revision} of {settings.model or 'no model'}"
        yield Problem("AGENT_MODEL_REVISION", got, "a model on the hub in AGENT_MODEL, or unset")

    # Is all there that the recipe needs, at places that every node has?
    known = recipe_info(settings, command)
    if known is None:
        return
    for name in ("AGENT_MODEL", "AGENT_TRAIN_DATA", "AGENT_EVAL_DATA"):
        text: str | None = getattr(settings, FIELD_OF[name])
        if text is None and name in known.needs:
            yield Problem(name, "nothing", f"{_EXPECTED[name]}, which {known.name} needs")
        elif text is not None and text.startswith(("./", "../", "~")):
            yield Problem(name, repr(text), "an absolute path, or an id: it is read on every node")
    if settings.model is not None and _NO_MODEL.match(settings.model):
        expected = "an id on the hub alone, such as Qwen/Qwen2.5-7B, or an absolute path"
        yield Problem("AGENT_MODEL", repr(settings.model), expected)

    if settings.job is not None and settings.launcher not in {None, known.launcher}:
        got = f"'{settings.launcher}' beside {known.name}"
        yield Problem("AGENT_LAUNCHER", got, f"{known.launcher}, or unset")


_OPTIONS = tuple(dict.fromkeys(name for recipe in RECIPES for name in recipe.takes))


def _check_recipe_options(settings: Settings, command: tuple[str, ...] | None) -> Iterator[Problem]:
    """Find variables that only some recipes have a use for, and that this job would ignore."""
    job = recipe_info(settings, command)
    name_of_job = "a command" if command is not None else settings.job or "no recipe"
    for name in _OPTIONS:
        value = getattr(settings, FIELD_OF[name])
        if value is None or (job is not None and name in job.takes):
            continue
        taking = ", ".join(recipe.name for recipe in RECIPES if name in recipe.takes)
        yield Problem(name, f"{value} beside {name_of_job}", f"unset, or one of {taking}")


def _check_reward(settings: Settings, command: tuple[str, ...] | None) -> Iterator[Problem]:
    reward = settings.reward
    job = recipe_info(settings, command)

    # Is it a slip? A shell would be asked to run it.
    meant = _ANSWERS.get((reward or "").lower())
    meant = meant or next((word for word in BUNDLED if nearly_equal(reward or "", word)), None)
    if _BARE_ADDRESS.fullmatch(reward or ""):
        meant = f"http://{reward}"
    if meant is not None and reward != meant:
        expected = f"{meant} (did you mean that?), or the command or URL of a server"
        yield Problem("AGENT_REWARD", repr(reward), expected)

    # Is a reward server off that the job needs?
    if reward == "off" and needs_reward_url(settings, command):
        who = "a command with {reward_url}" if job is None else job.name
        model = "; or AGENT_REWARD_MODEL" if job is not None and job.loads_reward_model else ""
        yield Problem("AGENT_REWARD", f"'off' beside {who}", f"builtin, a URL or a command{model}")

    # Is there a reward model that the job does not load, or loads beside a server?
    named_by = reward_model(settings)
    if job is not None and named_by and not job.loads_reward_model:
        yield Problem(named_by, "a reward model", f"unset: {job.name} loads no reward model")
    elif job is not None and named_by and reward not in {None, "off"}:
        # OpenRLHF would silently use the server alone
        expected = "one of them: AGENT_REWARD=off for the model, or no model for the server"
        yield Problem(named_by, f"a reward model beside AGENT_REWARD={reward}", expected)

    # Is there a token that the job's client does not send? No request would be scored.
    is_off = job is None or job.reward == "unused" or reward_choice(settings, command) == "off"
    if settings.reward_token is not None and job is not None and not (job.sends_token or is_off):
        expected = f"unset: the reward client of {job.framework} sends no token"
        yield Problem("AGENT_REWARD_TOKEN", f"a token beside {job.name}", expected)

    if reward is not None and is_url(reward) and not _is_valid_url(reward):
        yield Problem("AGENT_REWARD", repr(reward), "a URL with a host, http://host:port/path")


def _is_valid_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        has_address = bool(parts.hostname) and parts.port != 0
    except ValueError:  # of its port
        return False
    return has_address and not any(character.isspace() for character in text)


def _check_secrets(settings: Settings) -> Iterator[Problem]:
    if settings.on_done in POD_ACTIONS and settings.runpod_api_key is None:
        expected = f"a key of RunPod's API, which AGENT_ON_DONE={settings.on_done} needs"
        yield Problem("RUNPOD_API_KEY", "nothing", expected)
    for name, token in secret_texts(settings, _IN_HEADERS).items():
        reference = _UNREPLACED.fullmatch(token)
        if reference:
            got = f"a reference to {reference[1]}, which the platform did not replace"
            yield Problem(name, got, "a secret of that name in the platform's store")
        elif not token.isascii() or not token.isprintable() or " " in token:
            expected = "printable ASCII without spaces, for example from `openssl rand -hex 32`"
            yield Problem(name, "a secret that cannot travel in an HTTP header", expected)


def _check_cost(settings: Settings) -> Iterator[Problem]:
    """Refuse a limit of money that could never be reached; RunPod gives a price by its API."""
    has_source = settings.price_per_hour is not None or settings.runpod_api_key is not None
    if settings.max_cost is not None and not has_source:
        yield Problem("AGENT_MAX_COST", "a limit without a price", NEEDS_PRICE)


def _check_judge(settings: Settings) -> Iterator[Problem]:
    """Refuse a judge that nothing asks, and a reward of a judge that is nowhere."""
    if settings.reward != JUDGE:
        for name in changed(settings, ("AGENT_JUDGE_URL", "AGENT_JUDGE_MODEL")):
            got = f"a judge beside AGENT_REWARD={settings.reward or 'unset'}"
            yield Problem(name, got, f"AGENT_REWARD={JUDGE}, or unset")
    elif settings.judge_url is None and settings.services is None:
        expected = "AGENT_JUDGE_URL, or [services.judge] in the file of AGENT_SERVICES"
        yield Problem("AGENT_REWARD", f"{JUDGE!r} without a judge", expected)


def may_listen_on(address: str, settings: Settings) -> bool:
    """Return whether the agent's port may be open on an address: public only with a token."""
    is_allowed = settings.ray_auth_token is not None or settings.allow_insecure
    return is_allowed or not is_public(address)


def reward_choice(settings: Settings, command: tuple[str, ...] | None) -> str:
    """Return AGENT_REWARD, or its default for this job."""
    if settings.reward:
        return settings.reward
    return "builtin" if needs_reward_url(settings, command) else "off"


def reward_port(settings: Settings, command: tuple[str, ...] | None, base: Ports) -> int:
    """Return the port of the reward server; a user's command has its own, whatever the platform."""
    if settings.reward_port:
        return settings.reward_port
    is_bundled = reward_choice(settings, command) in BUNDLED
    return base.reward if is_bundled else DEFAULTS.reward


def reward_listener(
    settings: Settings, command: tuple[str, ...] | None, base: Ports
) -> dict[str, int]:
    """Return the port of the reward server by its name, if this run starts one."""
    reward = reward_choice(settings, command)
    if reward == "off" or is_url(reward):
        return {}
    return {"reward server": reward_port(settings, command, base)}


def _check_workers(settings: Settings) -> Iterator[Problem]:
    expected = settings.expected_workers
    least = settings.min_workers
    if (settings.partial == "proceed") != (least is not None):
        got = "nothing" if least is None else str(least)
        yield Problem("AGENT_MIN_WORKERS", got, "a number with AGENT_PARTIAL=proceed, or neither")

    head = settings.head or ""
    if expected != 0 and (head.startswith("127.") or head in {"localhost", "::1"}):
        got = f"{head}, which on every node is that node itself"
        yield Problem("AGENT_HEAD", got, "the address of the head that other nodes can reach")

    if expected is not None and least is not None and least > expected:
        limit = "a minimum no larger than EXPECTED_WORKERS"
        yield Problem("AGENT_MIN_WORKERS + EXPECTED_WORKERS", f"{least} of {expected}", limit)


def _check_launcher(settings: Settings) -> Iterator[Problem]:
    """Refuse settings that only Ray supports, where a launcher starts the job on every node."""
    chosen = launcher(settings)
    if chosen == "ray":
        return
    if settings.job == NO_JOB:
        given = f"'{NO_JOB}', though without Ray there is no cluster to keep"
        yield Problem("AGENT_JOB", given, "a recipe, or a command after --; or AGENT_LAUNCHER=ray")
    names = " + ".join(changed(settings, _FOR_RAY))
    if names:
        expected = "unset: every node runs its processes in its own environment and folder"
        got = f"a value, though AGENT_LAUNCHER is {chosen!r} and no Ray runs"
        yield Problem(names, got, expected)


def _check_debugger(settings: Settings) -> Iterator[Problem]:
    """Refuse to end what a breakpoint stops: with the debugger, a job without steps is no hang."""
    if settings.debug_ray != "0" and settings.on_stall in {"retry", "stop"}:
        given = f"{settings.on_stall!r} beside DEBUG_RAY={settings.debug_ray}"
        expected = "log, or unset: a breakpoint would end the job"
        yield Problem("AGENT_ON_STALL", given, expected)


_FOR_RAY = (
    *("DEBUG_RAY", "AGENT_RUNTIME_ENV", "AGENT_WORKING_DIR", "AGENT_RESOURCES", "AGENT_RAY_ARGS"),
)


def changed(settings: Settings, names: Iterable[str]) -> Iterator[str]:
    """Yield those of these variables that are set to another value than their default."""
    default = Settings()
    for name in names:
        value = getattr(settings, FIELD_OF[name])
        if value not in ("", getattr(default, FIELD_OF[name])):
            yield name


TEMP_DIR = "--temp-dir"
"""Not passed on as given: the plan puts Ray's sessions into its own folder below it."""
SET_BY_AGENT = {
    *("--head", "--address", "--node-ip-address", "--port", "--gcs-server-port"),
    *("--include-dashboard", "--dashboard-host", "--dashboard-port", "--ray-client-server-port"),
    *("--node-manager-port", "--object-manager-port", "--metrics-export-port"),
    *("--dashboard-agent-listen-port", "--dashboard-agent-grpc-port", "--dashboard-grpc-port"),
    *("--runtime-env-agent-port", "--min-worker-port", "--max-worker-port", "--worker-port-list"),
    *("--num-cpus", "--num-gpus", "--resources", "--ray-debugger-external", "--redis-password"),
    *("--redis-username", "--autoscaling-config", "--block", "--disable-usage-stats", "--help"),
}
"""Flags that the agent sets or that would break the run."""

_HEAD_ONLY = {"--system-config", "--redis-shard-ports"}
"""Ray refuses these on a worker. All pods share one environment, so workers drop them."""


def flags_of(words: tuple[str, ...]) -> list[tuple[str, str | None]]:
    """Parse `--a=b`, `--a b` and `--a`; a word that follows no flag gets an empty name."""
    flags: list[tuple[str, str | None]] = []
    for word in words:
        last_name, last_value = flags[-1] if flags else ("", None)
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            flags.append((name, value if equals else None))
        elif last_name and last_value is None:
            flags[-1] = (last_name, word)
        else:
            flags.append(("", word))
    return flags


def flags_for_node(words: tuple[str, ...], *, is_head: bool) -> list[str]:
    """Return the flags that this node passes to `ray start`."""
    left_out = {TEMP_DIR} if is_head else {TEMP_DIR, *_HEAD_ONLY}
    return [
        name if value is None else f"{name}={value}"
        for name, value in flags_of(words)
        if name not in left_out
    ]


def _check_ray_args(words: tuple[str, ...]) -> Iterator[Problem]:
    """Find flags that the agent sets, and words that are no flags."""
    variable = "AGENT_RAY_ARGS"
    for name, value in flags_of(words):
        if not name:
            expected = "flags of `ray start`, as --object-store-memory=N or --object-store-memory N"
            yield Problem(variable, f"{value!r} without a flag before it", expected)
        elif name in SET_BY_AGENT:
            expected = "other flags: `pod-agent env` shows the variables that set this one"
            yield Problem(variable, name, expected)
        elif name == TEMP_DIR and not (value or "").startswith("/"):
            given = f"{TEMP_DIR}={value}" if value else f"{TEMP_DIR} without a folder"
            yield Problem(variable, given, "an absolute path, such as --temp-dir=/mnt/nvme")
