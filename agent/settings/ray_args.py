"""Checks AGENT_RAY_ARGS: flags of `ray start` that a user may set, and those the agent sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import Problem
from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE = "AGENT_RAY_ARGS"
TEMP_DIR = "--temp-dir"
"""Not passed on as given: the plan puts Ray's sessions into its own folder below it."""
OBJECT_STORE = "--object-store-memory"
PLASMA = "--plasma-directory"
MEMORY = "--memory"

_ROLE = "RAY_WORKER, HEAD_POD_ID or AGENT_HEAD, which choose the head"
_PORT = "AGENT_PORT, which Ray's inner ports follow"
_ARGV = "nothing: a secret would be visible in the process list; RAY_AUTH_TOKEN guards Ray"
_HELP = "nothing: run `ray start --help` yourself"
_ALWAYS = "nothing: the agent always sets it"
SET_BY_AGENT: Mapping[str, str] = {
    "--head": _ROLE,
    "--address": _ROLE,
    "--node-ip-address": "AGENT_NODE_IP",
    "--port": "AGENT_RAY_PORT",
    "--gcs-server-port": "AGENT_RAY_PORT",
    "--include-dashboard": "nothing: jobs are submitted through the dashboard",
    "--dashboard-host": "AGENT_DASHBOARD_HOST",
    "--dashboard-port": "AGENT_DASHBOARD_PORT",
    **dict.fromkeys(
        (
            *("--ray-client-server-port", "--node-manager-port", "--object-manager-port"),
            *("--dashboard-agent-listen-port", "--dashboard-agent-grpc-port"),
            *("--dashboard-grpc-port", "--runtime-env-agent-port", "--metrics-export-port"),
            *("--min-worker-port", "--max-worker-port", "--worker-port-list"),
        ),
        _PORT,
    ),
    "--num-cpus": "AGENT_NUM_CPUS",
    "--num-gpus": "AGENT_NUM_GPUS",
    "--resources": "AGENT_RESOURCES",
    "--ray-debugger-external": "DEBUG_RAY=1",
    "--redis-password": _ARGV,
    "--redis-username": _ARGV,
    "--autoscaling-config": "nothing: EXPECTED_WORKERS sets the number of nodes",
    "--block": _ALWAYS,
    "--disable-usage-stats": _ALWAYS,
    "--help": _HELP,
}
"""Flags that the agent sets or that would break the run, with what to use instead."""

_HEAD_ONLY = {"--system-config", "--redis-shard-ports"}
"""Ray refuses these on a worker. All pods share one environment, so workers drop them."""


class RayFlag(Value):
    """One flag of AGENT_RAY_ARGS."""

    name: str
    value: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """Return the flag as a word of an argv."""
        return (self.name,) if self.value is None else (f"{self.name}={self.value}",)


def flags_of(words: tuple[str, ...]) -> tuple[RayFlag, ...]:
    """Parse `--a=b`, `--a b` and `--a`; a word that follows no flag gets an empty name."""
    found: list[RayFlag] = []
    for word in words:
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            found.append(RayFlag(name, value if equals else None))
        elif found and found[-1].name and found[-1].value is None:
            found[-1] = RayFlag(found[-1].name, word)
        else:
            found.append(RayFlag("", word))
    return tuple(found)


def value_of(words: tuple[str, ...], name: str) -> str | None:
    """Return a flag's value; the last one counts, as in Ray."""
    return next((f.value for f in reversed(flags_of(words)) if f.name == name), None)


def flags_for_node(words: tuple[str, ...], *, is_head: bool) -> list[str]:
    """Return the flags that this node passes to `ray start`."""
    left_out = {TEMP_DIR} if is_head else {TEMP_DIR, *_HEAD_ONLY}
    return [word for f in flags_of(words) if f.name not in left_out for word in f.words]


def ray_args_problems(words: tuple[str, ...]) -> Iterator[Problem]:
    """Find flags that the agent sets, and words that are no flags."""
    for flag in flags_of(words):
        if not flag.name:
            expected = "flags of `ray start`, as --object-store-memory=N or --object-store-memory N"
            yield Problem(VARIABLE, f"{flag.value!r} without a flag before it", expected)
        elif flag.name in SET_BY_AGENT:
            yield Problem(VARIABLE, flag.name, SET_BY_AGENT[flag.name])
        elif flag.name == TEMP_DIR and not (flag.value or "").startswith("/"):
            given = f"{TEMP_DIR}={flag.value}" if flag.value else f"{TEMP_DIR} without a folder"
            yield Problem(VARIABLE, given, "an absolute path, such as --temp-dir=/mnt/nvme")
