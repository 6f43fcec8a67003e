"""A Ray of our own: the command lines of `ray start`, head and worker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent.base.addresses import in_url, reached_at
from agent.base.value import dataclass
from agent.node.facts import MIB
from agent.plan.environment import object_store
from agent.work.where import HEAD_IP, NODE_IP

if TYPE_CHECKING:
    from agent.base.ports import Ports
    from agent.node.facts import Facts
    from agent.settings import Settings


@dataclass(frozen=True)
class OwnRay:
    """A Ray that this node starts and stops: all that its command lines rest on."""

    settings: Settings
    facts: Facts
    ports: Ports
    session: str
    """The folder of its sessions, ours alone."""
    dashboard_host: str
    allotted_memory: int | None = None
    """What a shared node allots to this job; Ray would take the whole machine's for its own."""

    @property
    def gcs(self) -> str:
        """Return where its GCS answers, as the head itself calls it."""
        return f"{NODE_IP}:{self.ports.gcs}"

    @property
    def dashboard(self) -> str:
        """Return the URL of its dashboard, as the head itself calls it."""
        return f"http://{in_url(reached_at(self.dashboard_host))}:{self.ports.dashboard}"

    def command(self, *, is_head: bool) -> tuple[str, ...]:
        """Return the argv of `ray start`, with placeholders for the addresses."""
        return (*self._common(), *(self._of_head() if is_head else self._of_worker()))

    def _of_head(self) -> list[str]:
        ports = self.ports
        return [
            "--head",
            f"--port={ports.gcs}",
            f"--dashboard-host={self.dashboard_host}",
            f"--dashboard-port={ports.dashboard}",
            f"--ray-client-server-port={ports.client}",
            f"--temp-dir={self.session}",
            "--disable-usage-stats",
        ]

    def _of_worker(self) -> list[str]:
        return [f"--address={HEAD_IP}:{self.ports.gcs}"]

    def _common(self) -> list[str]:
        ports, settings = self.ports, self.settings
        argv = [
            *self.facts.ray.command,
            "start",
            "--block",
            f"--node-ip-address={NODE_IP}",
            f"--node-manager-port={ports.node_manager}",
            f"--object-manager-port={ports.object_manager}",
            f"--dashboard-agent-listen-port={ports.dashboard_agent}",
            f"--dashboard-agent-grpc-port={ports.dashboard_agent_grpc}",
            f"--runtime-env-agent-port={ports.runtime_env_agent}",
            f"--metrics-export-port={ports.metrics}",
            f"--min-worker-port={ports.first_worker}",
            f"--max-worker-port={ports.last_worker}",
            f"--num-cpus={settings.num_cpus or self.facts.cpus}",
        ]
        if settings.num_gpus is not None:
            argv.append(f"--num-gpus={settings.num_gpus}")
        if settings.resources:
            argv.append(f"--resources={json.dumps(settings.resources)}")
        size = object_store(self.facts, self.allotted_memory)
        if self.allotted_memory is not None and size is not None:
            argv.append(f"--memory={max(MIB, self.allotted_memory - size)}")
        if size is not None:
            argv.append(f"--object-store-memory={size}")
        if settings.debug_ray == "1":
            argv.append("--ray-debugger-external")
        return argv
