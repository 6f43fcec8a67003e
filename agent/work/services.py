"""What runs beside the job: the reward server, as a value to be planned, shown and run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.base.own_command import own_command
from agent.settings.rules import is_url, wants_reward_url

if TYPE_CHECKING:
    from agent.settings import Settings

REWARD = "reward server"
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Service:
    """One service: how to start it, where it answers, and where others reach it."""

    name: str
    argv: tuple[str, ...] | None
    """None where somebody else runs it and it is only probed."""
    url: str
    """The URL that the job and the other nodes are given."""
    port: int | None = None
    bind: str = ""
    env: tuple[tuple[str, str], ...] = ()

    @property
    def supervised(self) -> bool:
        """Say whether its process is ours."""
        return self.argv is not None


def reward_service(
    settings: Settings,
    command: tuple[str, ...] | None,
    node_ip: str,
    python: str = sys.executable,
) -> Service | None:
    """Return the reward server that this run needs, or None; `python` runs the bundled one."""
    wish = settings.reward or ("builtin" if wants_reward_url(settings, command) else "off")
    port, path = settings.reward_port, settings.reward_path
    host = f"[{node_ip}]" if ":" in node_ip else node_ip
    url = f"http://{host}:{port}{path}"
    if wish == "off":
        return None
    if is_url(wish):
        return Service(REWARD, None, wish)
    if wish == "builtin":
        flags = ["--host", f"{node_ip},{_LOOPBACK}", "--port", str(port), "--path", path]
        argv = own_command(python, "reward-server", *flags)
        return Service(REWARD, tuple(argv), url, port, f"{node_ip} and {_LOOPBACK}")
    env = (("AGENT_REWARD_PORT", str(port)), ("AGENT_REWARD_PATH", path))
    return Service(REWARD, ("/bin/sh", "-c", wish), url, port, "as its command says", env)
