"""The measured peak of a training step against the sizing's arithmetic, at several sizes."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import agent.bundled
from agent.frameworks.layouts import FSDP_RESIDENT
from agent.frameworks.recipe import ModelShape
from tools.gpu import agents
from tools.gpu.part import PartError

if TYPE_CHECKING:
    from agent.frameworks.layouts import Layout
    from tools.gpu.part import Program, Work

PEAK = Path(__file__).parent / "inside" / "peak.py"
TRAINER = Path(agent.bundled.__file__).with_name("trl_grpo.py")
EACH_SECONDS = 70.0
SHM = Path("/dev/shm")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1")
"""As the agent starts the recipe: what torch keeps for one rank of a group counts too."""
HERE = ("--host", agents.LOOPBACK, "--port", "0")


class Size(NamedTuple):
    """A model of Qwen2's kind, and the answers of a step."""

    name: str
    hidden: int
    wide: int
    layers: int
    heads: int
    kv_heads: int
    answers: int
    length: int = 128
    vocabulary: int = 151_936

    @property
    def tokens(self) -> int:
        """Return the tokens of a micro batch."""
        return self.answers * self.length

    def config(self) -> dict[str, int]:
        """Return the fields of its configuration."""
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.wide,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
        }


SIZES = (
    Size("0.5B", 896, 4864, 24, 14, 2, answers=16),
    Size("0.5B, 8,192 tokens", 896, 4864, 24, 14, 2, answers=64),
    Size("1.5B", 1536, 8960, 28, 12, 2, answers=16),
    Size("3B", 2048, 11008, 36, 16, 2, answers=16),
)
"""The shapes of Qwen2.5's."""
ON_CPUS = (
    Size("10M", 128, 512, 4, 4, 2, answers=8, length=16, vocabulary=32_000),
    Size("30M", 256, 1024, 8, 4, 2, answers=8, length=16, vocabulary=64_000),
)


def run(at: Work) -> None:
    """Measure each size in a process of its own; a size that fails does not end the others."""
    server = at.start("rewards", [sys.executable, "-m", "agent", "reward-server", *HERE])
    found = at.wait_for(server, r"http://\S+", 30) or at.wait_for(
        server, r"http://\S+", 1, errors=True
    )
    if found is None:
        raise PartError(f"no reward server: {server.tail()}")
    rows: list[dict[str, object]] = []
    at.figures["sizes"] = rows
    for number, size in enumerate(SIZES if at.has_gpu else ON_CPUS):
        row: dict[str, object] = {"size": size.name, "tokens": size.tokens}
        rows.append(row)
        try:
            row |= measured(at, f"size-{number}", size, found[0])
        except PartError as error:
            row["failure"] = str(error)
    at.stop(server)
    if model_folder(at) != at.folder:
        shutil.rmtree(model_folder(at), ignore_errors=True)
    if failed := [str(row["size"]) for row in rows if "failure" in row]:
        raise PartError(f"not measured: {', '.join(failed)}")


def measured(at: Work, name: str, size: Size, url: str) -> dict[str, object]:
    """Train two steps; return the peak and the arithmetic."""
    folder = model_folder(at) / name
    argv = [
        sys.executable,
        *TORCHRUN,
        str(PEAK),
        "--folder",
        str(folder),
        "--trainer",
        str(TRAINER),
    ]
    argv += ["--config", json.dumps(size.config()), "--reward-url", url]
    argv += ["--answers", str(size.answers), "--length", str(size.length)]
    argv += [] if at.has_gpu else ["--cpu"]
    program = at.run(name, argv, agents.QUIET, limit=EACH_SECONDS)
    printed = json.loads(read_last(program))
    shape = ModelShape.from_config(size.config())
    if shape is None:
        raise PartError("no shape follows from the configuration")
    expected = predicted(shape, FSDP_RESIDENT, size.tokens)
    row = {
        "parameters": printed["parameters"],
        "parameters_by_sizing": shape.parameters,
        "predicted_gb": round(expected / 1e9, 2),
        "seconds": printed["seconds"],
    }
    for kind in ("allocated", "reserved", "used"):
        peak = printed.get(kind)
        row[f"{kind}_gb"] = None if peak is None else round(peak / 1e9, 2)
        row[f"{kind}_ratio"] = None if peak is None else round(peak / expected, 3)
    row["after_loading_gb"] = round(printed["after_loading"] / 1e9, 2)
    return row


def model_folder(at: Work) -> Path:
    """Return a folder in memory where there is room for a model, else one on the disk."""
    if at.has_gpu and shutil.disk_usage(SHM).free > 20e9:
        return Path(SHM, at.folder.parent.name)
    return at.folder


def read_last(program: Program) -> str:
    """Return the last line of output that is JSON."""
    found = re.findall(r"^\{.*\}$", program.output, re.MULTILINE)
    if not found:
        raise PartError(f"{program.name} printed no figures: {program.tail()}")
    return str(found[-1])


def predicted(shape: ModelShape, layout: Layout, tokens: int) -> float:
    """Return the bytes of a training step on one GPU, as the sizing has them."""
    return shape.parameters * layout.busy.shard + shape.gathered + tokens * shape.token()
