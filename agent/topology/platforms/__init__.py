"""The platforms, one file each, asked in a fixed order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import SettingsError
from agent.base.ports import DEFAULTS
from agent.topology.platforms import (
    aws_batch,
    dstack,
    kubeflow_trainer,
    kuberay,
    lws,
    plain,
    pytorchjob,
    runpod,
    runpod_cluster,
    sagemaker,
    skypilot,
    slurm,
    torchrun,
    vast,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.base.ports import PortBase
    from agent.settings import Settings
    from agent.topology.platforms.claim import Claim

PLATFORMS: tuple[Callable[[Mapping[str, str], Settings], Claim | None], ...] = (
    # Those that rent from others come first: below them, their hosts' variables may be seen too.
    dstack.detect,  # on RunPod's pods too: it knows ranks, RunPod's pods do not
    skypilot.detect,  # on RunPod, Kubernetes and Slurm too
    # srun passes on the environment that it was called in, a login node's on a cloud included.
    slurm.detect,
    runpod_cluster.detect,  # before RunPod's pods, which its nodes are as well
    # Kubernetes: KubeRay first, as where Ray runs already no other evidence matters.
    kuberay.detect,
    lws.detect,
    kubeflow_trainer.detect,
    pytorchjob.detect,  # after Trainer: it shares PET_NODE_RANK, and MASTER_ADDR is anybody's
    aws_batch.detect,
    sagemaker.detect,
    # General variables, which any of the above may set for its jobs as well; before platforms
    # that know no ranks, since on those somebody must have set them for a reason.
    torchrun.detect,
    runpod.detect,
    vast.detect,
    plain.detect,  # claims whatever is left
)


def claim_of(environ: Mapping[str, str], settings: Settings) -> Claim:
    """Return the first platform's claim; `plain` has one on everything."""
    return next(filter(None, (detect(environ, settings) for detect in PLATFORMS)))


def port_base(environ: Mapping[str, str], settings: Settings) -> PortBase:
    """Return where this environment's ports begin, as far as it can be told."""
    try:
        return claim_of(environ, settings).ports
    except SettingsError:
        return DEFAULTS
