"""The command lines of `ray start` on head and worker."""

from __future__ import annotations

import json

from msgspec.structs import replace

from agent.base.ports import Ports
from agent.base.text import in_url, reached_at
from agent.base.value import Value
from agent.node.facts import MIB, Facts
from agent.plan.environment import object_store
from agent.settings.model import Settings
from agent.settings.ray_args import (
    MEMORY,
    OBJECT_STORE,
    PLASMA,
    TEMP_DIR,
    flags_for_node,
    flags_of,
    value_of,
)
from agent.work.services import HEAD_IP, NODE_IP


class OwnRay(Value):
    """A Ray that the agent starts on this node: the inputs of its command lines."""

    settings: Settings
    facts: Facts
    ports: Ports
    session: str
    """Ray's temp dir, which contains its sessions."""
    dashboard_host: str
    allotted_memory: int | None = None
    """Bytes allotted to the job on a shared node, which Ray does not detect."""

    @property
    def gcs(self) -> str:
        """Return the address of GCS for the head itself."""
        return f"{NODE_IP}:{self.ports.gcs}"

    @property
    def dashboard(self) -> str:
        """Return the URL of the dashboard for the head itself."""
        return f"http://{in_url(reached_at(self.dashboard_host))}:{self.ports.dashboard}"

    def command(self, *, is_head: bool) -> tuple[str, ...]:
        """Return the argv of `ray start`, with placeholders for the addresses."""
        own = self._of_head() if is_head else self._of_worker()
        return (*self._common(), *own, *flags_for_node(self.settings.ray_args, is_head=is_head))

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
        """Return a worker's flags; without --temp-dir Ray uses the head's path."""
        address = f"--address={HEAD_IP}:{self.ports.gcs}"
        is_given = value_of(self.settings.ray_args, TEMP_DIR) is not None
        return [address, f"--temp-dir={self.session}"] if is_given else [address]

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
        argv += self._memory()
        if settings.debug_ray == "1":
            argv.append("--ray-debugger-external")
        return argv

    def _memory(self) -> list[str]:
        """Return memory limits where Ray's defaults are too large and the user set none."""
        given = {flag.name for flag in flags_of(self.settings.ray_args)}
        facts = replace(self.facts, shm=0) if PLASMA in given else self.facts
        size = object_store(facts, self.allotted_memory)
        if size is None:
            return []
        chosen = {OBJECT_STORE: size}
        if self.allotted_memory is not None:
            chosen = {MEMORY: max(MIB, self.allotted_memory - size), **chosen}
        return [f"{name}={amount}" for name, amount in chosen.items() if name not in given]
