"""At the start, ask whether the Instant Cluster of this pod can be deleted at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base import times
from agent.plan.show import DELETE_CLUSTER
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.log import say
from agent.runpod.pod_api import PodApi

if TYPE_CHECKING:
    from agent.run.node_run import NodeRun
    from agent.runpod.pod_stop import PodAnswer


async def check_cluster(run: NodeRun) -> None:
    """Log if the cluster will stay after the end, though AGENT_ON_DONE asks to delete it.

    That a key may see the cluster does not show that it may delete it: only a refusal is sure.
    """
    plan = run.plan
    api = PodApi(plan.settings, run.container.environ)
    if not plan.topology.deletes_cluster(plan.settings) or not api.can_be_asked:
        return

    async def ask() -> str | NotYet:
        answer = await api.ask()
        if answer.pod is None:
            return _refusal(answer)
        if answer.pod.cluster is None:
            return "RunPod names no cluster of this pod"
        return _refusal(await api.ask_about_cluster(answer.pod.cluster.id))

    try:
        why = await until(
            ask,
            times.PRICE_ASKED,
            step=times.POD_RETRY_PAUSE,
            longest=times.LONGEST_POD_RETRY_PAUSE,
        )
    except TimedOutError as late:
        why = str(late)
    if why:
        what = f"AGENT_ON_DONE=terminate-pod cannot delete this cluster: {why}"
        say(f"{what}. After the end its pods are held, and bill: {DELETE_CLUSTER}", "error")


def _refusal(answer: PodAnswer) -> str | NotYet:
    """Return '' for a success, why RunPod refuses, or NotYet if it may not refuse again."""
    about = f"RunPod answered {answer.code}"
    if answer.detail:
        about += f" ({answer.detail})"
    if answer.code == 200:
        return ""
    return about if answer.is_final else NotYet(about)
