"""AWS Batch multi-node parallel jobs: node indexes, and a main node that may have any of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.topology.platforms.claim import Claim, Names, number, ranked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

NAMES = Names(
    platform="aws-batch",
    rank="AWS_BATCH_JOB_NODE_INDEX",
    nodes="AWS_BATCH_JOB_NUM_NODES",
    head="AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",  # not set on the main node itself
)
MAIN = "AWS_BATCH_JOB_MAIN_NODE_INDEX"


def detect(environ: Mapping[str, str], _settings: Settings) -> Claim | None:
    """Claim the node of a multi-node job; other jobs of AWS Batch have no index of nodes."""
    if NAMES.rank not in environ:
        return None
    last = (number(environ, NAMES.nodes, 1) or 1) - 1
    main = number(environ, MAIN, 0, last) or 0
    claim = ranked(environ, NAMES, main_rank=main)
    return replace(
        claim,
        evidence=(*claim.evidence, f"{MAIN}={main}"),
        node_name=f"node{claim.rank}",
        run_id=_run_id(environ),
        owns_machine=True,
    )


def _run_id(environ: Mapping[str, str]) -> str | None:
    """Return the job's id, which AWS Batch gives each node with an index of its own."""
    job = environ.get("AWS_BATCH_JOB_ID", "").partition("#")[0]
    retries = (number(environ, "AWS_BATCH_JOB_ATTEMPT", 1) or 1) - 1
    return f"{job}-r{retries}" if job and retries else job or None
