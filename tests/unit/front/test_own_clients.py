"""The frameworks' own clients of engines: what they do when an engine exits or hangs.

Each runs only where variables name it: POD_AGENT_SLIME, POD_AGENT_PRIME_RL, POD_AGENT_AREAL and
POD_AGENT_SKYRL a checkout, and the same name with _PYTHON a Python that has its packages (slime
needs none; for SkyRL vllm-router, too). POD_AGENT_TRL_PYTHON is one with TRL.
"""

from __future__ import annotations

import asyncio
import os
import signal
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
    folders: tuple[str, ...] = ()
    """Below its checkout, those that Python imports from."""
    weights: str = ""
    dialect: str = "sglang"
    engines_read: bool = False
    """Whether its folders of weights are there, and the engines look into them."""

    @property
    def variable(self) -> str:
        """The one that names its checkout, or without a checkout a Python that has it."""
        return f"POD_AGENT_{self.name}{'' if self.folders else '_PYTHON'}"


FRAMEWORKS = (
    Framework("SLIME", SLIME, (".",), "11"),
    Framework(
        *("PRIME_RL", PRIME_RL, ("packages/prime-rl-configs/src", "src")),
        *("step_11", "prime-rl"),
    ),
    Framework("AREAL", AREAL, (".",), "weight_update_v11", engines_read=True),
)


def _skip_without(framework: Framework) -> None:
    if framework.variable not in os.environ:
        pytest.skip(f"{framework.variable} is not set")


@asynccontextmanager
async def running(
    framework: Framework, *arguments: str, stubs: Path | None = None
) -> AsyncIterator[Process]:
    """Run a client until it ends by itself."""
    python = os.environ.get(f"POD_AGENT_{framework.name}_PYTHON", sys.executable)
    places = [f"{os.environ[framework.variable]}/{folder}" for folder in framework.folders]
    if stubs is not None:
        places.append(str(stubs))
    process = await asyncio.create_subprocess_exec(
        *(python, "-c", framework.client, *arguments),
        env={"PYTHONPATH": ":".join(places), "PATH": os.environ["PATH"]},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # with SkyRL's router
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
    _skip_without(framework)

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

    play(scenario, dialect=framework.dialect, keep=2, limit=200.0)


# --- weights by NCCL: no front --------------------------------------------------------------------

_ANSWERS = """
import asyncio
import sys
import time

slept = []

def brief(sleep):
    def sleeps(seconds, *more):
        slept.append(seconds)
        return sleep(seconds / 100, *more)
    return sleeps

asyncio.sleep = brief(asyncio.sleep)
time.sleep = brief(time.sleep)

async def answer(requests):
    print("done started", file=sys.stderr, flush=True)
    while verb := (await asyncio.to_thread(sys.stdin.readline)).strip():
        slept.clear()
        try:
            result = await requests[verb]()
        except Exception as error:
            result = type(error).__name__
        print("done", result, f"{sum(slept):.0f} s", file=sys.stderr, flush=True)
"""
"""A client sends what it is asked for, and writes the result or the error, and how long it paused.

Its pauses are a hundredth.
"""

SKYRL = (
    _ANSWERS
    + """
from types import ModuleType, SimpleNamespace
import skyrl
backends = ModuleType("skyrl.backends")  # its own imports what needs Python 3.12
backends.__path__ = [skyrl.__path__[0] + "/backends"]
sys.modules["skyrl.backends"] = backends
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
    RemoteInferenceClient,
)
from skyrl.backends.skyrl_train.inference_servers.vllm_router import VLLMRouter
from vllm_router.router_args import RouterArgs

engines = sys.argv[1:]
arguments = RouterArgs(host="0.0.0.0", policy="consistent_hash", worker_urls=engines)
router = VLLMRouter(arguments)
words = SimpleNamespace(batch_decode=lambda ids: ["word"])
client = RemoteInferenceClient(
    router.start(), engines, data_parallel_size=1, model_name="m", tokenizer=words
)

async def generate():
    sessions = [*range(16)]
    batch = {"prompt_token_ids": [[1]] * 16, "sampling_params": {}, "session_ids": sessions}
    answers = await client.generate(batch)
    return sorted({number for (number,) in answers["response_ids"]})

async def sync():
    await client.pause_generation()
    try:
        await client.start_weight_update()
        await client.update_weights_nccl({"names": []})
        await client.finish_weight_update()
    finally:
        await client.resume_generation()
    return "synced"

asyncio.run(answer({"generate": generate, "sync": sync}))
router.shutdown()
"""
)
"""SkyRL's own client and router; a sync as its dispatch and its NCCL strategy send it."""

TRL = (
    _ANSWERS
    + """
import torch
from trl.generation.vllm_client import VLLMClient

client = VLLMClient(base_url=sys.argv[1], connection_timeout=5.0)
client.init_communicator("cuda")

async def generate():
    answers = await asyncio.to_thread(client.generate, [[1, 2]])
    return answers["completion_ids"]

def send_weights():
    client.update_named_params([("w", "float32", [1])], iter([("w", torch.zeros(1))]))
    client.reset_prefix_cache()

async def sync():
    await asyncio.to_thread(send_weights)
    return "synced"

asyncio.run(answer({"generate": generate, "sync": sync}))
"""
)
"""The client of TRL's GRPOTrainer."""

TRL_ASYNCHRONOUS = (
    _ANSWERS
    + """
import aiohttp
import torch
from collections import Counter
from accelerate import PartialState
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop
from trl.experimental.async_grpo.vllm_client import VLLMClient
from trl.experimental.async_grpo.weight_transfer import WeightTransferClient

class Loop(_AsyncRolloutLoop):
    def __init__(self, url):  # without its model and its tokenizer
        self.vllm_server_url = url
        self.model_name = "m"
        self.request_timeout = 120
        self.lora_name = self.min_p = None
        self.max_tokens = self.temperature = self.top_p = self.top_k = self.repetition_penalty = 1
        self._counters = Counter()

PartialState(cpu=True)
loop = Loop(sys.argv[1])
names = {"names": ["w"], "dtype_names": ["float32"], "shapes": [[1]]}
transfer = WeightTransferClient(VLLMClient(sys.argv[1]), names)
transfer.init_weight_transfer()

async def generate():
    async with aiohttp.ClientSession() as loop.session:
        tokens, _ = await loop._generate_one_turn([1, 2])
    return [tokens]

def send_weights():
    transfer.pause()
    transfer.send_weights(iter([("w", torch.zeros(1))]))
    transfer.resume()

async def sync():
    await asyncio.to_thread(send_weights)
    return "synced"

asyncio.run(answer({"generate": generate, "sync": sync}))
"""
)
"""The clients of TRL's AsyncGRPOTrainer: of its process for rollouts, and of its syncs."""
TRL_REPLIES = {
    "/v1/models": {"data": [{"id": "m"}]},
    "/server_info": {
        "vllm_config": {
            "weight_transfer_config": {"backend": "nccl"},
            "model_config": {"dtype": "torch.float32"},
        }
    },
    "/get_world_size": {"world_size": 1},
    "/update_weights": {},
    "/v1/completions": {
        "choices": [
            {
                "prompt_token_ids": [1, 2],
                "token_ids": [7],
                "logprobs": {
                    "tokens": ["token_id:7"],
                    "token_logprobs": [0.0],
                    "top_logprobs": [None],
                },
            }
        ]
    },
}
VLLM_STUBS = {
    "vllm-0.28.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.28.0\n",
    "vllm-0.28.0.dist-info/top_level.txt": "vllm\n",
    "vllm/__init__.py": "LLM = RequestOutput = SamplingParams = None",
    "vllm/sampling_params.py": "StructuredOutputsParams = None",
    "vllm/utils/network_utils.py": (
        "def get_ip(): return '127.0.0.1'\ndef get_open_port(): return 1"
    ),
    "vllm/distributed/weight_transfer/nccl_common.py": (
        "from types import SimpleNamespace\n"
        "def trainer_init(info): return SimpleNamespace(group=SimpleNamespace())"
    ),
    "vllm/distributed/weight_transfer/packed_tensor.py": (
        "def packed_nccl_broadcast_producer(iterator, **_): return [*iterator]"
    ),
}
"""Of vLLM, what TRL imports from it: the group of ranks and the transfer by NCCL need GPUs."""


async def asked(process: Process, verb: str, limit: float = 40.0) -> str:
    """Have a client send something; return the result, or its error."""
    assert process.stdin is not None
    process.stdin.write(f"{verb}\n".encode())
    return await said(process, limit)


def test_skyrls_own_client() -> None:
    """Its router sends the requests of an engine nowhere else; one that is back answers them.

    A sync fails at once, or as the process of an engine that hangs ends.
    """
    framework = Framework("SKYRL", SKYRL, (".", "skyrl-gym"))
    _skip_without(framework)
    path = "/inference/v1/generate"

    async def scenario(front: FrontUnderTest) -> None:
        first, second = front.engines
        for number, engine in enumerate(front.engines):
            answer = {"choices": [{"token_ids": [number], "finish_reason": "stop"}]}
            engine.replies[path] = answer
        urls = (f"http://{engine.host}:{engine.port}" for engine in front.engines)
        async with running(framework, *urls) as process:
            assert await said(process, 60.0) == "started"
            assert await asked(process, "generate") == "[0, 1] 0 s"
            assert await asked(process, "sync") == "synced 0 s"

            first.waits[path] = asyncio.Event()
            generating = asyncio.create_task(asked(process, "generate"))
            await front.until(lambda: path in first.asked[-1:])
            await first.kill()
            del first.waits[path]
            await first.start()
            assert (await generating).startswith("[0, 1]")

            await first.kill()
            answered = await asked(process, "generate", 60.0)
            assert answered.startswith("JSONDecodeError")
            assert await asked(process, "sync") == "ClientConnectorError 0 s"
            await first.start()

            second.asked.clear()
            second.hangs = {"*"}
            syncing = asyncio.create_task(asked(process, "sync", 60.0))
            await front.until(lambda: bool(second.asked))
            await second.kill()
            assert await syncing == "ServerDisconnectedError 0 s"
            go_on(process)

    play(scenario, limit=200.0)


class TrlClient(NamedTuple):
    """One of TRL's clients, and how its requests fail while the server is gone, or refuses."""

    client: str
    generate: str
    sync: str
    refused: str


TRL_CLIENTS = {
    "GRPOTrainer": TrlClient(
        TRL, "ConnectionError 60 s", "ConnectionError 60 s", "RetryError 12 s"
    ),
    "AsyncGRPOTrainer": TrlClient(
        TRL_ASYNCHRONOUS, "ClientConnectorError 505 s", "ConnectionError 0 s", "RuntimeError 0 s"
    ),
}


@pytest.mark.parametrize("name", TRL_CLIENTS)
def test_trls_own_clients(name: str, tmp_path: Path) -> None:
    """They try for minutes, and take the answers of a server that is back within them."""
    row = TRL_CLIENTS[name]
    framework = Framework("TRL", row.client)
    _skip_without(framework)
    for stub, text in VLLM_STUBS.items():
        place = tmp_path / stub
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    async def scenario(front: FrontUnderTest) -> None:
        (server,) = front.engines
        server.replies |= TRL_REPLIES
        url = f"http://{server.host}:{server.port}"
        async with running(framework, url, stubs=tmp_path) as process:
            assert await said(process, 60.0) == "started"
            assert await asked(process, "generate") == "[[7]] 0 s"
            assert await asked(process, "sync") == "synced 0 s"

            await server.kill()
            assert await asked(process, "generate") == row.generate
            assert await asked(process, "sync") == row.sync

            await server.start()
            server.waits["/v1/completions"] = asyncio.Event()
            generating = asyncio.create_task(asked(process, "generate"))
            await front.until(lambda: server.asked[-1] == "/v1/completions")
            await server.kill()
            del server.waits["/v1/completions"]
            await server.start()
            assert (await generating).startswith("[[7]]")
            server.statuses["/update_weights"] = 500  # as vLLM's without its group of ranks
            assert await asked(process, "sync") == row.refused
            go_on(process)

    play(scenario, 1, limit=200.0)
