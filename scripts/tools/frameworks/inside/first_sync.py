"""verl's own sender of weights, run with all tensors of real models, on torch's meta device.

A tensor on `meta` has a shape and a type and no memory, so that a model of any size is sent whole:
buckets, their order and every assertion are verl's. Only the GPU is missing: the buffer is on
`meta` too, and instead of vLLM a thread accepts each bucket.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import transformers
import zmq

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

SENDER = "verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py"


async def each(weights: Iterable[tuple[str, Any]]) -> AsyncIterator[tuple[str, Any]]:
    """Yield weights as verl's `ensure_async_iterator` does."""
    for pair in weights:
        yield pair


def sender_of(package: Path) -> ModuleType:
    """Load verl's module with the sender alone; its device is `meta`."""
    nothing = SimpleNamespace(
        synchronize=lambda: None, ipc_collect=lambda: None, empty_cache=lambda: None
    )
    uses: dict[str, dict[str, object]] = {
        "verl.utils.device": {
            "get_device_id": lambda: 0,
            "get_device_name": lambda: "meta",
            "get_torch_device": lambda: nothing,
            "is_support_ipc": lambda: True,
        },
        "verl.workers.rollout.utils": {"ensure_async_iterator": each},
    }
    for name in ("verl", "verl.utils", "verl.workers", "verl.workers.rollout", *uses):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__.update(uses.get(name, {}))
    spec = importlib.util.spec_from_file_location("bucketed_weight_transfer", package / SENDER)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - the file is there
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__dict__["reduce_tensor"] = lambda tensor: (type, (str(tensor.dtype),))
    return module


def weights_of(config: dict[str, Any], dtype: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all weights of a model as transformers has them."""
    made = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made, dtype=getattr(torch, dtype))
    yield from model.state_dict().items()


def accept(handle: str, accepted: list[int]) -> None:
    """Accept what a sender sends, and count its buckets."""
    with zmq.Context.instance().socket(zmq.REP) as socket:
        socket.connect(handle)
        socket.recv_pyobj()  # the buffer
        socket.send(b"")
        is_last = False
        while not is_last:
            is_last = socket.recv_pyobj()["is_last"]
            accepted.append(1)
            socket.send(b"")


def send(module: ModuleType, asked: dict[str, Any]) -> str:
    """Send one model; return '' or how verl ended."""
    accepted: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        handle = f"ipc://{folder}/weights"
        receiver = threading.Thread(target=accept, args=(handle, accepted), daemon=True)
        receiver.start()
        sender = module.BucketedWeightSender(handle, bucket_size_mb=asked["bucket"])
        try:
            asyncio.run(sender.async_send_weights(weights_of(asked["config"], asked["dtype"])))
        except AssertionError as error:
            return str(error)
        receiver.join(60)
    return "" if accepted and not receiver.is_alive() else "no bucket was accepted"


def main() -> None:
    """Send each model that stdin names; print a list of ends."""
    asked = json.load(sys.stdin)
    module = sender_of(Path(asked["package"]))
    print(json.dumps([send(module, model) for model in asked["models"]]))


if __name__ == "__main__":
    main()
