"""The platforms, in the order in which they are detected; the first that matches wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import SettingsError
from agent.base.ports import DEFAULTS
from agent.topology import kuberay, ranked, runpod, slurm
from agent.topology.ranked import DSTACK, LWS, detector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.base.ports import PortBase
    from agent.settings.model import Settings
    from agent.topology.platform_info import PlatformInfo

    Detector = Callable[[Mapping[str, str], Settings], PlatformInfo | None]

PLATFORMS: tuple[tuple[str, Detector], ...] = (
    # Platforms that run on other platforms come first: the variables of both are set.
    ("dstack", detector(DSTACK)),  # also on RunPod's pods, which have no ranks
    ("skypilot", ranked.detect_skypilot),  # also on RunPod, Kubernetes and Slurm
    # srun passes on the caller's environment, such as that of a cloud's login node.
    ("slurm", slurm.detect_slurm),
    ("runpod-cluster", runpod.detect_runpod_cluster),  # before "runpod": its nodes are pods, too
    # Kubernetes: KubeRay first, since it decides where Ray already runs.
    ("kuberay", kuberay.detect_kuberay),
    ("lws", detector(LWS)),
    ("kubeflow-trainer", ranked.detect_kubeflow_trainer),
    ("pytorchjob", ranked.detect_pytorchjob),  # after Trainer, which also sets PET_NODE_RANK
    ("aws-batch", ranked.detect_aws_batch),
    ("sagemaker", ranked.detect_sagemaker),
    # General variables, which the platforms above may also set for their jobs. On platforms
    # without ranks the user must have set them, so they come before those.
    ("torchrun", ranked.detect_torchrun),
    ("runpod", runpod.detect_runpod),
    ("vast", ranked.detect_vast),
    ("plain", ranked.detect_plain),  # matches everything else
)
"""To add a platform with a rank variable, add a row to `ranked` and a line here."""


def detect_platform(environ: Mapping[str, str], settings: Settings) -> PlatformInfo:
    """Return the node as the first matching platform describes it."""
    return next(filter(None, (detect(environ, settings) for _, detect in PLATFORMS)))


def port_base(environ: Mapping[str, str], settings: Settings) -> PortBase:
    """Return the default ports of this platform; the usual ones if its variables are invalid."""
    try:
        return detect_platform(environ, settings).ports
    except SettingsError:
        return DEFAULTS
