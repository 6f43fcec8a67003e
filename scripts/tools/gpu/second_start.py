"""trl-grpo through the agent: the first start, again, and on a fresh node with the volume.

Each start is measured from the agent's start to the first line of a step, with the recipe as it is
and with torch.compile. A fresh node has nothing of the caches but the volume's archive.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tools.gpu import agents
from tools.gpu.part import PartError
from tools.gpu.training import SCRIPTS, WITHOUT_ENGINE

if TYPE_CHECKING:
    from tools.gpu.part import Program, Work

NODES_CACHES = Path("/tmp/pod-agent")
"""Where the agent keeps a node's caches."""
DROP = Path("/proc/sys/vm/drop_caches")
LAYERS = 2
STEPS = 2
EACH_SECONDS = 100.0
EXAMINED_AFTER = "45s"
"""A start that takes longer is examined by the agent: its log then says where it is."""
FEW = (
    "--max-completion-length 8 --num-generations 8 --per-device-train-batch-size 32 "
    f"--gradient-accumulation-steps 1 --save-steps {STEPS} --max-steps {STEPS}"
)
KINDS = {"unchanged": "", "compiled": "--config torch_compile=true"}


def run(at: Work) -> None:
    """Measure both kinds; one that fails does not end the other."""
    made = [sys.executable, "-m", "tools.frameworks.inside.small_model", str(at.folder)]
    at.run("model", [*made, str(LAYERS)], {"PYTHONPATH": str(SCRIPTS), **agents.QUIET}, limit=60)
    failures = []
    for kind, words in KINDS.items():
        figures = at.figures[kind] = {"layers": LAYERS}
        try:
            measure(at, kind, words, figures)
        except PartError as error:
            failures.append(f"{kind}: {error}")
    if failures:
        raise PartError("; ".join(failures))


def measure(at: Work, kind: str, words: str, figures: dict[str, object]) -> None:
    """Start one kind three times; write what was seen to `figures`."""
    forget_node()
    forget_files()
    cold = figures["cold"] = started(at, kind, "cold", words)
    figures["again"] = again = started(at, kind, "again", words)
    forget_node()
    forget_files()
    figures["fresh"] = fresh = started(at, kind, "fresh", words)
    figures["again_ratio"] = round(again / cold, 3)
    figures["fresh_ratio"] = round(fresh / cold, 3)


def forget_node() -> None:
    """Remove the caches that runs left on this node."""
    for folder in NODES_CACHES.glob("caches-*"):
        shutil.rmtree(folder)


def forget_files() -> None:
    """Have the next start read its packages from the disk, as on a fresh machine, if root may."""
    os.sync()
    if os.access(DROP, os.W_OK):
        DROP.write_text("3", encoding="utf-8")


def started(at: Work, kind: str, name: str, words: str) -> float:
    """Run the recipe to its end; return the seconds to its first step."""
    agent = start(at, kind, name, words)
    seconds = agents.seconds_to(at, agent, r"^step 1/", EACH_SECONDS)
    code = at.wait(agent, EACH_SECONDS)
    said = [line for line in agent.errors.splitlines() if "compile caches: " in line]
    at.figures[kind][f"{name}_caches"] = [one.partition("compile caches: ")[2] for one in said]
    if code != 0:
        raise PartError(f"{name} ended with {code}: {agent.tail()}")
    return seconds


def start(at: Work, kind: str, name: str, words: str) -> Program:
    """Start the agent with the recipe, with caches on a volume of its kind."""
    engine = f" {WITHOUT_ENGINE}" if at.has_gpu else ""
    env = {
        "AGENT_JOB": "trl-grpo",
        "AGENT_JOB_ARGS": f"{FEW}{engine} {words}".strip(),
        "AGENT_MODEL": str(at.folder / "model"),
        "AGENT_TRAIN_DATA": str(at.folder / "train.jsonl"),
        "AGENT_CHECKPOINTS": str(at.folder / f"{kind}-{name}-checkpoints"),
        "AGENT_FIRST_STEP": EXAMINED_AFTER,
        "AGENT_CACHE_DIR": str(at.folder / f"{kind}-volume"),
    }
    return agents.start(at, f"{kind}-{name}", [], env)
