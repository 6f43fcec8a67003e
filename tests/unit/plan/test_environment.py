"""The environment of a node's processes: values chosen, set by the user, and dropped."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.errors import SettingsError
from agent.node.facts import MIB
from agent.plan.environment import (
    for_bridge,
    for_node,
    one_wandb_run,
    without_cluster_auth,
)
from agent.plan.ray_start import object_store
from agent.plan.show import environment_of
from agent.settings.redact import MASK
from support.worlds import MACHINE, POD, SECRET, plan_of, settings_of, topology_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.settings.model import Settings

NODE, HEAD = "10.0.0.5", "10.0.0.1"


def of(environ: dict[str, str]) -> dict[str, str]:
    """Return Ray's environment on a node with this one."""
    return for_node(environ, settings_of(environ), MACHINE, NODE, HEAD)


def test_what_training_needs_is_chosen() -> None:
    """Address and interface come from the node's address; W&B goes offline without a key."""
    chosen = {
        "VLLM_HOST_IP": NODE,
        "NCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "WANDB_MODE": "offline",
        "RAY_AUTH_MODE": "disabled",
    }
    assert of({}) == chosen
    assert of({"PATH": "/bin", "HF_HOME": "/hf"}) == {**chosen, "PATH": "/bin", "HF_HOME": "/hf"}


def test_the_interface_is_the_addresss_own() -> None:
    """The interface with the address is used, not the default route's."""
    found = for_node({}, settings_of({}), POD, "10.1.0.10", HEAD)
    assert found["NCCL_SOCKET_IFNAME"] == found["GLOO_SOCKET_IFNAME"] == "podnet1"
    unknown = for_node({}, settings_of({}), POD, "10.9.9.9", HEAD)
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & unknown.keys()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("VLLM_HOST_IP", "10.0.0.77"),
        ("NCCL_SOCKET_IFNAME", "ib0"),
        ("GLOO_SOCKET_IFNAME", ""),
        ("WANDB_MODE", "online"),
        ("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "5"),
        ("RAY_DEBUG", "legacy"),
    ],
)
def test_what_the_user_set_wins(name: str, text: str) -> None:
    """A user's value is never replaced."""
    assert of({name: text})[name] == text


@pytest.mark.parametrize(
    ("environ", "mode"),
    [
        ({}, "disabled"),
        ({"RAY_AUTH_MODE": "disabled"}, "disabled"),
        ({"RAY_AUTH_MODE": " "}, "disabled"),
        ({"RAY_AUTH_MODE": "k8s"}, "k8s"),
        ({"RAY_AUTH_TOKEN": SECRET}, "token"),
        ({"RAY_AUTH_TOKEN": SECRET, "RAY_AUTH_MODE": "Token"}, "Token"),
    ],
)
def test_rays_token_mode_is_explicit(environ: dict[str, str], mode: str) -> None:
    """It is always set, since Ray's default differs between versions; the user's own stays."""
    found = of(environ)
    assert found["RAY_AUTH_MODE"] == mode
    assert found.get("RAY_AUTH_TOKEN") == environ.get("RAY_AUTH_TOKEN")


def test_a_secrets_file_becomes_its_value() -> None:
    """Child processes get the secret itself, in one variable."""
    named = {"RAY_AUTH_TOKEN_PATH": "/t", "WANDB_API_KEY_FILE": "/w", "RAY_AUTH_TOKEN_FILE": "/f"}
    settings = settings_of({"RAY_AUTH_TOKEN": SECRET, "WANDB_API_KEY": f"{SECRET}-w"})
    found = for_node(named, settings, MACHINE, NODE, HEAD)
    assert not named.keys() & found.keys()
    assert (found["RAY_AUTH_TOKEN"], found["WANDB_API_KEY"]) == (SECRET, f"{SECRET}-w")
    assert "WANDB_MODE" not in found


def test_urls_of_messages_are_not_inherited() -> None:
    """Only the head's agent sends messages; whoever has a URL can send some, too."""
    named = {"AGENT_NOTIFY": f"https://hooks.example/{SECRET}", "AGENT_NOTIFY_FILE": "/n"}
    children = for_node(named, settings_of({}), MACHINE, NODE, HEAD)
    assert not named.keys() & children.keys()


KEY = {"WANDB_API_KEY": "k"}
ONE_RUN = {"WANDB_RUN_ID": "job-4711-2", "WANDB_RESUME": "allow"}


@pytest.mark.parametrize(
    ("full", "has_login", "expected"),
    [
        (KEY, False, ONE_RUN),
        ({}, True, ONE_RUN),
        ({}, False, {}),
        ({**KEY, "WANDB_MODE": "disabled"}, True, {}),
        ({"WANDB_MODE": "offline"}, False, {}),
        ({**KEY, "WANDB_RUN_ID": "mine"}, False, {"WANDB_RESUME": "allow"}),
        ({**KEY, "WANDB_RESUME": "must"}, False, {}),
        ({**KEY, "WANDB_SWEEP_ID": "s"}, False, {}),
    ],
)
def test_attempts_are_one_run_of_wandb(
    full: dict[str, str], expected: dict[str, str], *, has_login: bool
) -> None:
    """Where W&B is on; the user's values win, and an id has only letters that W&B takes."""
    assert one_wandb_run(full, "job:4711/2", has_login=has_login) == expected
    assert one_wandb_run(full, "", has_login=has_login) == {}


CLUSTER, W_AND_B = f"{SECRET}-cluster", f"{SECRET}-wandb"
OWN = {
    "HF_TOKEN": f"{SECRET}-hf",
    "OPENAI_API_KEY": f"{SECRET}-openai",
    "DATABASE_URL": f"postgres://app:{SECRET}-db@db/rl",
    "PGPASSWORD": f"{SECRET}-pg",
    "RAY_REDIS_PASSWORD": f"{SECRET}-redis",
    "HTTPS_PROXY": f"http://me:{SECRET}-proxy@proxy:3128",
    "AGENT_PREPARE": f"HF_TOKEN={SECRET}-step python get.py",
    "APP_CONFIG": f'{{"api_key": "{SECRET}-json"}}',
}
"""Secrets of the user's own, in every place in which they are known."""
PLAIN = {"PATH": "/bin", "HF_HOME": "/hf", "INPUT_KEY": "message", "LD_LIBRARY_PATH": "/lib"}
COPIES = {"CLUSTER_COPY": CLUSTER, "WANDB_COPY": f"key={W_AND_B}"}
MANY = {**OWN, **PLAIN, **COPIES, "RAY_AUTH_TOKEN": CLUSTER, "WANDB_API_KEY": W_AND_B}
ALL = {*OWN, *COPIES, "RAY_AUTH_TOKEN", "WANDB_API_KEY"}


@pytest.mark.parametrize(
    ("child", "secret"),
    [
        (None, ALL),
        (for_bridge, {"RAY_AUTH_TOKEN"}),
        (without_cluster_auth, {*OWN}),
        (
            partial(without_cluster_auth, keeps_wandb=True),
            {*OWN, "WANDB_API_KEY", "WANDB_COPY"},
        ),
    ],
    ids=["ray and the job", "bridge", "service", "prepare step"],
)
def test_each_child_gets_the_secrets_that_it_needs(
    child: Callable[[Mapping[str, str], Settings], dict[str, str]] | None, secret: set[str]
) -> None:
    """Ray and the job get all; other processes only their own, under any name."""
    settings, full = settings_of(MANY), of(MANY)
    found = full if child is None else child(full, settings)
    assert {name for name, text in found.items() if SECRET in text} == secret
    assert found.items() >= PLAIN.items()
    assert found["NCCL_SOCKET_IFNAME"] == "eth0"
    assert found.items() <= full.items()


def test_the_bridge_asks_as_ray_wants_to_be_asked() -> None:
    """It gets the token's mode and the headers for a dashboard; a service gets neither."""
    environ = {**MANY, "RAY_JOB_HEADERS": '{"Authorization": "Bearer headers-secret"}'}
    settings, full = settings_of(environ), of(environ)
    bridge = for_bridge(full, settings)
    assert bridge["RAY_AUTH_MODE"] == "token"
    assert bridge["RAY_JOB_HEADERS"] == environ["RAY_JOB_HEADERS"]
    assert "RAY_AUTH_MODE" not in without_cluster_auth(full, settings)
    assert "RAY_AUTH_MODE" not in without_cluster_auth(full, settings, keeps_wandb=True)
    assert for_bridge(of({}), settings_of({}))["RAY_AUTH_MODE"] == "disabled"


def test_a_short_secret_takes_nothing_else_along() -> None:
    """A one-letter key, which every value contains, removes no PATH from a child."""
    environ = {"WANDB_API_KEY": "b", "RAY_AUTH_TOKEN": "n", "PATH": "/bin", "COPY": "b"}
    found = without_cluster_auth(of(environ), settings_of(environ))
    assert found["PATH"] == "/bin"
    assert not {"COPY", "WANDB_API_KEY", "RAY_AUTH_TOKEN"} & found.keys()


def test_a_leftover_address_is_dropped() -> None:
    """RAY_ADDRESS would direct every child process to another cluster."""
    assert "RAY_ADDRESS" not in of({"RAY_ADDRESS": "10.9.9.9:6379"})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"DEBUG_RAY": "0"}, {}),
        ({"DEBUG_RAY": "1"}, {"RAY_DEBUG": "legacy"}),
        ({"DEBUG_RAY": "1", "RAY_DEBUG_POST_MORTEM": "1"}, {"RAY_DEBUG": "legacy"}),
        ({"DEBUG_RAY": "post-mortem"}, {"RAY_DEBUG_POST_MORTEM": "1"}),
        ({"DEBUG_RAY": "post-mortem", "RAY_DEBUG": "legacy"}, {"RAY_DEBUG_POST_MORTEM": "1"}),
    ],
)
def test_the_two_debuggers_exclude_each_other(
    environ: dict[str, str], expected: dict[str, str]
) -> None:
    """Only the chosen debugger's variable is set, whatever was left in the environment."""
    found = {k: v for k, v in of(environ).items() if k.startswith("RAY_DEBUG")}
    assert found == expected


@pytest.mark.parametrize(
    ("environ", "entries"),
    [
        ({}, None),
        ({"http_proxy": ""}, None),
        ({"http_proxy": "http://p:1"}, f"localhost,127.0.0.1,{NODE},{HEAD}"),
        ({"ALL_PROXY": "http://p:1"}, f"localhost,127.0.0.1,{NODE},{HEAD}"),
        (
            {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a.lan,localhost"},
            f"a.lan,localhost,127.0.0.1,{NODE},{HEAD}",
        ),
        (
            {"HTTPS_PROXY": "http://p:1", "no_proxy": "b.lan"},
            f"b.lan,localhost,127.0.0.1,{NODE},{HEAD}",
        ),
    ],
)
def test_a_proxy_stays_out_of_the_nodes_traffic(
    environ: dict[str, str], entries: str | None
) -> None:
    """With a proxy, the nodes are added to its exceptions, and the user's stay."""
    found = of(environ)
    assert found.get("no_proxy") == found.get("NO_PROXY") == entries


def test_display_shows_only_what_is_added_and_masks_secrets() -> None:
    """A plan shows added and changed variables; secrets are masked."""
    environ = {"PATH": "/bin", "VLLM_HOST_IP": "10.0.0.77", "RAY_AUTH_TOKEN": SECRET}
    environ["RAY_ADDRESS"] = "ray://elsewhere"
    shown = environment_of(plan_of(environ))
    assert shown["RAY_ADDRESS"] == "(dropped)"
    assert shown["RAY_AUTH_TOKEN"] == MASK
    assert not {"PATH", "VLLM_HOST_IP"} & shown.keys()
    assert shown["NCCL_SOCKET_IFNAME"] == "eth0"


@pytest.mark.parametrize(
    ("shm", "free", "memory", "size"),
    [
        (0, 0, 1000, None),
        (400, 300, 1000, None),
        (400, 299, 1000, int(299 * MIB * 0.9)),
        (64, 64, 1000, 80 * MIB),
    ],
)
def test_the_object_store_fits_shared_memory(
    shm: int, free: int, memory: int, size: int | None
) -> None:
    """Ray's default stays if it fits; otherwise the store shrinks to the free /dev/shm."""
    facts = replace(MACHINE, shm=shm * MIB, shm_free=free * MIB, memory=memory * MIB)
    assert object_store(facts) == size


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RAY_AUTH_MODE": "token"}, "token without RAY_AUTH_TOKEN"),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": SECRET}, "disabled beside RAY_AUTH_TOKEN"),
    ],
)
def test_a_mode_that_contradicts_the_token_is_refused(environ: dict[str, str], said: str) -> None:
    """Neither is dropped in silence: Ray would be open where the user asked for a guard."""
    with pytest.raises(SettingsError, match=f"RAY_AUTH_MODE.*{said}"):
        topology_of(environ)
    topology_of({**environ, "AGENT_LAUNCHER": "torchrun"})  # which runs no Ray
