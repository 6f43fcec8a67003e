"""The all-reduce before a job, and whether NCCL takes two ranks on one GPU."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tools.gpu import agents
from tools.gpu.part import PartError

if TYPE_CHECKING:
    from tools.gpu.part import Work

HANGING = Path(__file__).parent / "inside" / "hanging.py"
SHARED_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
"""Newer NCCLs then take several ranks on one GPU."""
ERROR = re.compile(r"Duplicate GPU[^\n]{0,120}|\w+Error: [^\n]{0,160}")
MOST_ERRORS = 3
VERDICT = "two-ranks.json"


def run(at: Work) -> None:
    """Run a short job after the preflight; then try two ranks on one GPU by NCCL."""
    job = at.folder / "job.py"
    job.write_text("print('the job ran', flush=True)\n", encoding="utf-8")
    env = {"AGENT_PREFLIGHT": "nccl", "NCCL_DEBUG": "INFO"}
    agent = agents.start(at, "agent", [sys.executable, str(job)], env)
    code = at.wait(agent, 60)
    at.figures["code"] = code
    at.figures["agent_seconds"] = round(time.monotonic() - agent.began, 1)
    result = json.loads(agents.file_of(at, "agent", "preflight.json").read_text(encoding="utf-8"))
    at.figures["result"] = result
    measured = result.get("all_reduce")
    if measured:
        at.figures["gb_per_second"] = round(measured["bytes"] / measured["seconds"] / 1e9, 1)
    if code != 0 or "the job ran" not in agent.output:
        raise PartError(f"the agent ended with {code}: {agents.last_line(agent)}")
    if at.has_gpu:
        two_ranks(at)


def two_ranks(at: Work) -> None:
    """Try an all-reduce of two ranks on one GPU; NCCL's refusal is a figure, not a failure."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    argv = [sys.executable, *launcher, str(HANGING), "probe"]
    probe = at.start("two-ranks", argv, {**SHARED_GPU, "NCCL_SOCKET_IFNAME": "lo"})
    try:
        allowed = at.wait(probe, 40) == 0
    except PartError as error:
        at.figures["two_ranks_end"] = str(error)
        allowed = False
    said = [*dict.fromkeys(ERROR.findall(probe.errors))][:MOST_ERRORS]
    at.figures["two_ranks_on_one_gpu"] = {"allowed": allowed, "said": [] if allowed else said}
    verdict = at.folder.parent / VERDICT
    verdict.write_text(json.dumps(allowed), encoding="utf-8")


def may_take_two(at: Work) -> bool:
    """Return whether two ranks on one GPU are worth a try: not refused in this run."""
    verdict = at.folder.parent / VERDICT
    return not verdict.exists() or bool(json.loads(verdict.read_text(encoding="utf-8")))
