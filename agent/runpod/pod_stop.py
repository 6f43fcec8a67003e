"""How a pod of RunPod is stopped by its API: from each answer to the next request."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from agent.base import times
from agent.base.value import Value
from agent.decisions.shared import LogLine

_POD_STOPS = 60.0  # The container of a stopped pod is killed within this; then RunPod is asked.
RUNPOD_OVER = {"EXITED", "TERMINATED"}  # the states of a pod that bills no compute


class ClusterMember(Value):
    """The membership of a pod in an Instant Cluster."""

    id: str


class PodState(Value):
    """What RunPod publishes about a pod, as far as it is used here."""

    status: str
    actions: tuple[str, ...]  # the actions that the pod's status allows
    cost: float  # dollars an hour; 0 if unknown, or while the pod is stopped
    locked: bool
    cluster: ClusterMember | None = None


class PodAnswer(Value):
    """The answer to one request."""

    code: int  # the HTTP status; 0 if there was no valid answer
    detail: str = ""
    pod: PodState | None = None

    @property
    def is_final(self) -> bool:
        """Return whether the same request would be refused again."""
        return 400 <= self.code < 500 and self.code not in {408, 429}


class PodStop(Value):
    """The progress of a stop, and its next request."""

    action: str  # `stop` or `terminate`
    acts: bool = False  # true if the next request is the action; else it reads the pod's state
    pause: float = 0.0  # seconds until that request
    failures: int = 0  # answers in a row after which the same is tried again
    accepted: bool = False  # true once RunPod accepted the action: the container will be stopped
    obstacle: str = ""  # why the pod still runs, as logged last
    is_head: bool = False  # of the run: it alone deletes the cluster that a pod belongs to
    cluster: str = ""  # the action deletes this one, and the pod with it


def after_answer(stop: PodStop, answer: PodAnswer) -> tuple[PodStop, LogLine | None]:
    """Return the next request after an answer, and the log line if something changed."""
    code = answer.code
    pod = answer.pod
    about = f": {answer.detail}" if answer.detail else ""

    # Was this the action? RunPod accepts it, or the pod's status changed since it was read.
    if stop.acts and code in {200, 204}:
        what = "delete this pod's cluster" if stop.cluster else f"{stop.action} this pod"
        return _accepted(stop, f"RunPod accepted to {what}")
    if stop.acts and code == 409:
        return _held(stop, f"its status forbids it{about}")

    # Does the answer have the pod's state?
    if code == 404 and stop.accepted:
        return _accepted(stop, "RunPod no longer lists this pod")
    if pod is None:
        why = _REFUSALS.get(code, f"no success ({code or 'no answer'})")
        return _held(stop, f"{why}{about}", is_refused=code in _REFUSALS)

    # Has it stopped already, or may it not be stopped?
    if pod.status in RUNPOD_OVER:
        return _accepted(stop, f"RunPod lists this pod as {pod.status}")
    if pod.cluster is not None or pod.locked:
        return _bound(stop, pod.cluster)
    if stop.action not in pod.actions:
        can = ", ".join(pod.actions) or "nothing"
        return _held(stop, f"its status {pod.status} allows {can}")

    # A failure before stays counted: where the action itself fails, the pauses grow.
    return replace(stop, acts=True, pause=0.0), None


_REFUSALS = {
    401: "RunPod refuses RUNPOD_API_KEY (401)",
    403: "RUNPOD_API_KEY lacks the right to it (403)",
    404: "RunPod lists no such pod for RUNPOD_API_KEY (404)",
}


def _bound(stop: PodStop, cluster: ClusterMember | None) -> tuple[PodStop, LogLine | None]:
    """Return what follows for a locked pod, or one that ends only with its Instant Cluster."""
    if cluster is None:
        return _held(stop, "it is locked", is_refused=True)
    if stop.action != "terminate":
        why = f"it belongs to cluster {cluster.id} and stops only with it"
        return _held(stop, why, is_refused=True)
    if stop.is_head:
        return replace(stop, acts=True, pause=0.0, cluster=cluster.id), None
    why = f"the head deletes its cluster {cluster.id}"
    log = None if why == stop.obstacle else LogLine(f"holding the pod until {why}")
    return replace(stop, pause=times.HOLD_REMINDER, obstacle=why), log


def _accepted(stop: PodStop, sentence: str) -> tuple[PodStop, LogLine | None]:
    """Wait for the end of the container, and ask again if it does not come."""
    log = None if stop.accepted else LogLine(f"{sentence}: waiting for the container's end")
    return _next(stop, _POD_STOPS, accepted=True), log


def _next(stop: PodStop, pause: float, **more: Any) -> PodStop:  # noqa: ANN401 - its fields
    """Return the progress that reads the pod's state after a pause."""
    return PodStop(stop.action, pause=pause, is_head=stop.is_head, **more)


def _held(stop: PodStop, why: str, *, is_refused: bool = False) -> tuple[PodStop, LogLine | None]:
    """Hold the pod, and try again: soon, or after a refusal, which is logged each time, later."""
    text = f"holding the pod, which RunPod does not {stop.action}: {why}; trying again"
    log = LogLine(text, "error")
    if is_refused:
        return _next(stop, times.HOLD_REMINDER, obstacle=why), log

    pause = min(times.POD_RETRY_PAUSE * 2**stop.failures, times.LONGEST_POD_RETRY_PAUSE)
    failures = min(stop.failures + 1, 30)
    soon = _next(stop, pause, failures=failures, obstacle=why)
    return soon, None if why == stop.obstacle else log
