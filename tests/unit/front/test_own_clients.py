"""The frameworks' own clients of engines: what they do when an engine exits or hangs.

Each runs only where variables name it: POD_AGENT_SLIME, POD_AGENT_PRIME_RL and POD_AGENT_AREAL a
checkout, and the same name with _PYTHON a Python that has its packages (slime needs none).
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

from agent.front import front_server
from support.front_engines import play, shorten_times

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.front_engines import FrontUnderTest

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what takes a minute in a run take tenths of a second."""
    shorten_times(monkeypatch)
    monkeypatch.setattr(front_server, "FIRST_UPDATE", 2.0)  # on a busy machine
    monkeypatch.setattr(front_server, "UPDATE_LEAST", 2.0)


PRIME_RL = """
import asyncio
import sys
from pathlib import Path
from prime_rl.configs.shared import ClientConfig
from prime_rl.utils.client import check_health, setup_admin_clients, update_weights

async def main():
    folder, *urls = sys.argv[1:]
    urls[0] += "/v1"
    clients = setup_admin_clients(ClientConfig(admin_base_url=urls))
    await check_health(clients)
    for step in range(12):
        await update_weights(clients, Path(folder) / f"step_{step}", step=step)
        print("done", step, file=sys.stderr, flush=True)  # its log is the other stream
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""
"""Prime-rl's own client in place of its orchestrator: one update after the other."""

SLIME = """
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

def stub(name, **values):
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(values)

stub("sglang")
stub("sglang.srt")
stub("sglang.srt.server_args", ServerArgs=object)
stub("sglang.srt.utils", kill_process_tree=None)
stub("slime.ray.ray_actor", RayActor=object)
stub("slime.utils.accelerator", initialize_accelerator=lambda: None)
stub("slime.utils.http_utils", get_host_info=None)
stub("slime.backends.sglang_utils.external", get_server_info=None)
from slime.backends.sglang_utils.sglang_engine import SGLangEngine

folder, *urls = sys.argv[1:]
engines = []
for url in urls:
    engine = SGLangEngine(args=None, rank=0)
    engine.node_rank = 0
    engine.server_host, engine.server_port = url.rpartition("//")[2].split(":")
    engines.append(engine)

def of_each(verb, **values):
    with ThreadPoolExecutor() as pool:  # slime has a Ray actor for each engine
        list(pool.map(lambda engine: getattr(engine, verb)(**values), engines))

for step in range(12):
    of_each("pause_generation")
    of_each("flush_cache")
    of_each("update_weights_from_disk", model_path=folder, weight_version=str(step))
    of_each("continue_generation")
    print("done", step, file=sys.stderr, flush=True)
    sys.stdin.readline()
"""
"""slime's own engines, in the order in which its group of actors calls them."""

AREAL = """
import asyncio
import sys
import time
from pathlib import Path
from areal.api import ModelRequest, WeightUpdateMeta
from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig, NameResolveConfig
from areal.engine.sglang_remote import RemoteSGLangEngine
from areal.utils import name_resolve, names

folder, *urls = sys.argv[1:]
resolved = NameResolveConfig(type="nfs", nfs_record_root=folder + "/names")
name_resolve.reconfigure(resolved)
config = InferenceEngineConfig(backend="sglang:d2", experiment_name="e", trial_name="t")
engine = RemoteSGLangEngine(config)
engine.initialize(addr=[url.rpartition("//")[2] for url in urls])
update = WeightUpdateMeta.from_disk("e", "t", folder)

async def answer():
    sampling = GenerationHyperparameters(max_new_tokens=4)
    reply = await engine.agenerate(ModelRequest(input_ids=[1, 2], gconfig=sampling))
    assert reply.output_tokens == [7]

async def answers():
    await asyncio.gather(*(answer() for _ in range(4)))

for step in range(12):
    engine.set_version(step)
    weights = update.with_version(step)
    engine.pause_generation()
    loading = engine.update_weights_from_disk(weights)
    Path(weights.path).mkdir(parents=True)
    Path(weights.path, "model.safetensors").touch()
    saved = names.update_weights_from_disk("e", "t", step)
    name_resolve.add(saved, str(time.time()), keepalive_ttl=120)
    loading.result()
    engine.continue_generation()
    asyncio.run(answers())
    print("done", step, file=sys.stderr, flush=True)
    sys.stdin.readline()
engine.destroy()
"""
"""AReaL's own engine, in the order in which its trainers with FSDP and Megatron call it."""
AREAL_ANSWER = {
    "meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[0.0, 7]]}
}


class Framework(NamedTuple):
    """A framework's client, and with which weights its engines end."""

    name: str
    client: str
    folders: tuple[str, ...]
    """Below the checkout, those that Python imports from."""
    weights: str
    dialect: str = "sglang"
    engines_read: bool = False
    """Whether its folders of weights are there, and the engines look into them."""

    @property
    def variable(self) -> str:
        """The one that names its checkout."""
        return f"POD_AGENT_{self.name}"


FRAMEWORKS = (
    Framework("SLIME", SLIME, (".",), "11"),
    Framework(
        *("PRIME_RL", PRIME_RL, ("packages/prime-rl-configs/src", "src")),
        *("step_11", "prime-rl"),
    ),
    Framework("AREAL", AREAL, (".",), "weight_update_v11", engines_read=True),
)


@asynccontextmanager
async def running(framework: Framework, *arguments: str) -> AsyncIterator[Process]:
    """Run a client until it ends by itself."""
    checkout = os.environ[framework.variable]
    process = await asyncio.create_subprocess_exec(
        *(os.environ.get(f"{framework.variable}_PYTHON", sys.executable), "-c", framework.client),
        *arguments,
        env={
            "PYTHONPATH": ":".join(f"{checkout}/{folder}" for folder in framework.folders),
            "PATH": os.environ["PATH"],
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def said(process: Process, limit: float) -> str:
    """Return what a client writes after its next `done`."""
    assert process.stderr is not None
    others = []
    while line := await asyncio.wait_for(process.stderr.readline(), limit):
        first, _, rest = line.decode().partition(" ")
        if first == "done":
            return rest.strip()
        others.append(line.decode())
    raise AssertionError("".join(others))


def go_on(process: Process) -> None:
    """Have a client go on."""
    assert process.stdin is not None
    process.stdin.write(b"\n")


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name.lower())
def test_twelve_updates_through_a_front(framework: Framework, tmp_path: Path) -> None:
    """No one fails or takes long while an engine is down, or hangs; both get the last one."""
    if framework.variable not in os.environ:
        pytest.skip(f"{framework.variable} names no checkout")

    async def scenario(front: FrontUnderTest) -> None:
        first, second = front.engines
        for engine in front.engines:
            engine.reads_folders = framework.engines_read
            engine.replies["/generate"] = AREAL_ANSWER
        urls = (front.url(slot, "") for slot in (0, 1))
        async with running(framework, str(tmp_path), *urls) as process:
            for step in range(12):
                limit = 5.0 if step else 60.0  # of its start
                assert await said(process, limit) == str(step)
                if step == 2:
                    await first.kill()
                    first.answers = False
                    await front.order()
                if step == 5:
                    first.generation += 1
                    await first.start()
                    first.answers = True
                    await front.order()
                    await front.until(lambda: front.states() == ["serving", "serving"])
                if step == 8:
                    second.hangs = {"*"}
                go_on(process)
        await second.restart()
        await front.order()
        await front.until(lambda: front.states() == ["serving", "serving"])
        assert [one.weights for one in front.engines] == 2 * [framework.weights]

    play(scenario, dialect=framework.dialect, keep=2, limit=120.0)
