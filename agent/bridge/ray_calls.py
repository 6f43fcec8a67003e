"""All calls of Ray's Python API, each behind a typed function; light_calls.py does without."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agent.base import times

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TERMINAL = {"SUCCEEDED", "FAILED", "STOPPED"}
RESOURCES = {"gpus": "GPU", "cpus": "CPU", "memory": "memory"}
_SUPERVISOR = "JobSupervisor"
_MAX_TASKS = 1_000
_TASKS_LIMIT = 20
_ACTOR_LIMIT = 3
_LOG_LINES = 300
_MAX_MESSAGE = 6_000  # characters of a message's end that are kept


def import_ray() -> tuple[Any, Any]:
    """Import Ray, which takes a second; return its clients of GCS and of the job API."""
    from ray._raylet import GcsClient  # noqa: PLC0415 - while the cluster still starts
    from ray.job_submission import JobSubmissionClient  # noqa: PLC0415 - same

    return GcsClient, JobSubmissionClient


class Gcs:
    """Nodes and jobs straight from GCS; a call that fails drops the connection.

    A private API, since the public ones read the dashboard, which lags two seconds behind, and may
    hang while the job runs. Tried on Ray 2.40, 2.44, 2.49, 2.52, 2.55 and 2.60; `job` on 2.60.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: Any = None

    def load(self) -> None:
        """Import what the calls need."""
        import_ray()

    def nodes(self) -> list[dict[str, object]]:
        """Return all nodes, dead ones included, with the fields of RayNode."""
        nodes = []
        for node_id, info in self._call("get_all_node_info").items():
            total = dict(info.resources_total)
            resources = {ours: float(total.get(theirs, 0.0)) for ours, theirs in RESOURCES.items()}
            nodes.append(
                {
                    "node_id": node_id.hex(),
                    "ip": info.node_manager_address,
                    "port": info.node_manager_port,
                    "alive": info.state == 0,
                    "is_head": info.is_head_node,
                    **resources,
                }
            )
        return nodes

    def job(self, job_id: str) -> dict[str, object] | None:
        """Return the state of a job, which its supervisor writes; None if it has none."""
        key = f"_ray_internal_job_info_{job_id}".encode()
        state = self._call("internal_kv_get", key, b"job")
        return job_report(json.loads(state)) if state else None

    def _call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - Ray's own types
        # Until the call has succeeded there is no connection to use again.
        client = self._client or import_ray()[0](address=self._address)
        self._client = None
        result = getattr(client, name)(*arguments, timeout=times.GCS_CALL)
        self._client = client
        return result


class Jobs:
    """Ray's job API."""

    def __init__(self, dashboard: str) -> None:
        self._dashboard = dashboard

    @cached_property
    def _client(self) -> Any:  # noqa: ANN401 - Ray's own type
        _, job_client = import_ray()
        return job_client(self._dashboard)

    def submit_once(self, job: Mapping[str, Any]) -> None:
        """Submit a job unless its id exists: after a lost answer no second job may start."""
        try:
            self._submit(job)
        except Exception:
            with suppress(Exception):  # report the first error
                self._info(job["id"])
                return
            raise

    def has_job(self, job_id: str) -> bool:
        """Return whether Ray has a job of this id; raises where Ray does not answer."""
        return any(job["submission_id"] == job_id for job in self._list())

    def ids_of_run(self, prefix: str) -> list[str]:
        """Return the ids that are this one, or begin with it and a dash."""
        ids = (str(job["submission_id"] or "") for job in self._list())
        return [id_ for id_ in ids if id_ == prefix or id_.startswith(f"{prefix}-")]

    def report(self, job_id: str) -> dict[str, object]:
        """Return the job's state."""
        return job_report(self._info(job_id))

    def _submit(self, job: Mapping[str, Any]) -> None:
        self._client.submit_job(
            entrypoint=job["entrypoint"],
            submission_id=job["id"],
            runtime_env=job["runtime_env"] or None,
        )

    def _list(self) -> list[Mapping[str, Any]]:
        return [{"submission_id": job.submission_id} for job in self._client.list_jobs()]

    def _info(self, job_id: str) -> Mapping[str, Any]:
        info = self._client.get_job_info(job_id)
        # The class of `info` has differed between versions of Ray.
        names = ("message", "driver_exit_code", "error_type", "end_time")
        job = {name: getattr(info, name, None) for name in names}
        return {**job, "status": getattr(info.status, "value", info.status)}

    def follow_output(self, job_id: str, take: Callable[[str], None]) -> None:
        """Pass the driver's output to `take`, from its beginning until the job is over."""

        async def follow() -> None:
            async for text in self._client.tail_job_logs(job_id):
                take(text)

        asyncio.run(follow())

    def stop(self, job_id: str) -> None:
        """Ask Ray to stop the job."""
        self._client.stop_job(job_id)


def job_report(job: Mapping[str, Any]) -> dict[str, object]:
    """Return a job's state; a long message is cut to its start, and its end with the error."""
    status = str(job["status"])
    message = str(job.get("message") or "")
    if len(message) > _MAX_MESSAGE:
        message = f"{message[:1000]}\n…\n{message[-_MAX_MESSAGE:]}"

    # How long ago did it end? Ray gives milliseconds since 1970.
    ended = status in _TERMINAL
    end_time = job.get("end_time")
    ago = 0.0
    if ended and isinstance(end_time, (int, float)):
        ago = max(0.0, time.time() - end_time / 1000)

    return {
        "status": status,
        "message": message,
        "driver_exit_code": job.get("driver_exit_code"),
        "error_type": str(job.get("error_type") or ""),
        "ended": ended,
        "ended_ago": round(ago, 3),
    }


def _state_api() -> Any:  # noqa: ANN401 - Ray's own module
    from ray.util import state  # noqa: PLC0415 - Ray is imported as late as can be

    return state


def last_finished(dashboard: str) -> float | None:
    """Return when a task of the cluster finished last, in seconds since 1970; None: never.

    Ray's own pings of a job's supervisor do not count. Of very many tasks Ray returns the newest.
    Tried on Ray 2.60.
    """
    filters = [("state", "=", "FINISHED"), ("name", "!=", f"{_SUPERVISOR}.ping")]
    limits = (_MAX_TASKS, _TASKS_LIMIT)
    tasks = _state_api().list_tasks(dashboard, filters, *limits, True, False)  # noqa: FBT003 - theirs
    ends = [task.end_time_ms for task in tasks if not str(task.name).startswith(_SUPERVISOR)]
    return max((float(end) / 1000 for end in ends if end), default=None)


def unplaced(dashboard: str) -> dict[str, list[str]]:
    """Return what waits for a node with enough resources, with the fields of Unplaced.

    Tried on Ray 2.60.
    """
    ray = _state_api()
    groups = Counter[str]()
    others = Counter[str]()

    def add(waiting: Counter[str], what: str, needs: object) -> None:
        waiting[f"{what} waits for a node with {_resources_text(needs)}"] += 1

    # Actors, placement groups, then tasks.
    for state in ("PENDING_CREATION", "DEPENDENCIES_UNREADY"):
        for actor in ray.list_actors(
            dashboard, [("state", "=", state)], _MAX_TASKS, _TASKS_LIMIT, detail=True
        ):
            add(others, f"an actor of class {actor.class_name}", actor.required_resources)
    for group in ray.list_placement_groups(
        dashboard, [("state", "=", "PENDING")], _MAX_TASKS, _TASKS_LIMIT, detail=True
    ):
        needs = [bundle.get("unit_resources") for bundle in group.bundles or ()]
        add(groups, "a placement group", needs)
    pending = [("state", "=", "PENDING_NODE_ASSIGNMENT")]
    for task in ray.list_tasks(dashboard, pending, _MAX_TASKS, _TASKS_LIMIT, detail=True):
        if str(task.type) == "NORMAL_TASK":
            add(others, f"a task {task.name}", task.required_resources)
    return {"groups": _counted(groups), "others": _counted(others)}


def _counted(texts: Counter[str]) -> list[str]:
    return [f"{text} ({count} of them)" if count > 1 else text for text, count in texts.items()]


def _resources_text(needs: object) -> str:
    """Return resources as text, as in `CPU: 1, GPU: 8`."""
    if isinstance(needs, list):
        return " and ".join(_resources_text(bundle) for bundle in needs) or "unknown resources"
    if not isinstance(needs, dict) or not needs:
        return "unknown resources"
    return ", ".join(f"{name}: {amount:g}" for name, amount in needs.items())


def dead_actors(gcs: str, dashboard: str, ids: Sequence[str]) -> list[dict[str, str]]:
    """Return why Ray believes that actors died, with the ends of their logs; tried on Ray 2.60."""
    ray = _state_api()
    dead = []
    for actor in ids:
        # Why does Ray believe that it died? The cause is the only entry, by its kind.
        state = ray.get_actor(actor, dashboard, timeout=_ACTOR_LIMIT)
        causes: dict[str, Any] = getattr(state, "death_cause", None) or {}
        context: dict[str, Any] = next(iter(causes.values()), {})
        message = str(context.get("error_message", ""))
        ip = str(context.get("node_ip_address", ""))

        # The end of its log; its node may be gone, and its log with it.
        text = ""
        with suppress(Exception):
            ends = ray.get_log(
                gcs, actor_id=actor, suffix="err", tail=_LOG_LINES, timeout=_ACTOR_LIMIT
            )
            text = "".join(ends)
        dead.append({"id": actor, "ip": ip, "text": f"{message}\n{text}"})
    return dead


def is_final(error: Exception) -> bool:
    """Return whether retrying a submission cannot help."""
    if isinstance(error, (ValueError, TypeError)):
        return True  # refused by the client: a malformed runtime_env, a missing folder
    text = str(error)
    return "status code 413" in text or "status code 400" in text
