"""All calls of Ray's Python API, each behind a typed function."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


PACKING, SENDING = "packing", "sending"
_CHUNK = 1 << 16

_RPC_LIMIT = 5.0
_TERMINAL = {"SUCCEEDED", "FAILED", "STOPPED"}
_SUPERVISOR = "JobSupervisor"
_MAX_TASKS, _TASKS_LIMIT = 1_000, 20
_MAX_MESSAGE = 6_000
"""Characters of a message's end that are kept."""


class UploadMeter:
    """Measures the upload of one submission; used by two threads."""

    def __init__(self, known: Mapping[str, Any] | None, send: Callable[..., None]) -> None:
        self._known = dict(known or {})
        """The working_dir as the agent measured it: folder, files, bytes."""
        self._send = send
        self._folder = str(self._known.get("folder", ""))
        self._sent: CountedReader | None = None
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._began, self._read = time.monotonic(), bytes_read()

    def report(self) -> None:
        """Send the progress, if there is an upload."""
        with self._lock:
            self._report(is_over=False)

    def start_packing(self, folder: object) -> None:
        """Note the folder that is packed."""
        with self._lock:
            self._folder, self._sent = str(folder), None

    def start_sending(self, package: bytes) -> CountedReader:
        """Return a package as a request body that counts the bytes sent."""
        with self._lock:
            self._sent = CountedReader(package)
            return self._sent

    def finish(self) -> None:
        """Send the end of one upload; the next one starts from zero."""
        with self._lock:
            self._report(is_over=True)
            self._folder, self._sent = "", None
            self._reset()

    def _report(self, *, is_over: bool) -> None:
        if not self._folder:
            return
        known = self._known if self._folder == self._known.get("folder") else {}
        sent = self._sent
        self._send(
            folder=self._folder,
            files=known.get("files", 0),
            size=known.get("size", 0) if sent is None else len(sent),
            stage=PACKING if sent is None else SENDING,
            done=max(0, bytes_read() - self._read) if sent is None else sent.count,
            seconds=round(time.monotonic() - self._began, 3),
            is_over=is_over,
        )


class CountedReader:
    """A request body that counts the bytes read from it."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)
        self.count = 0

    def __len__(self) -> int:
        """Return the whole length, for the header."""
        return len(self._content)

    def read(self, size: int = -1) -> bytes:
        """Return the next chunk."""
        end = len(self) if size < 0 else self.count + size
        chunk = bytes(self._content[self.count : end])
        self.count += len(chunk)
        return chunk

    def __iter__(self) -> Iterator[bytes]:
        """Yield chunks; `requests` reads a body only if it is iterable."""
        while chunk := self.read(_CHUNK):
            yield chunk


def meter_uploads(client: Any, upload: Callable[[], UploadMeter | None]) -> None:  # noqa: ANN401 - Ray's, untyped
    """Patch a client, so that it reports what it packs and sends to the current meter."""
    pack, ask = getattr(client, "_upload_package", None), getattr(client, "_do_request", None)
    if not callable(pack) or not callable(ask):
        return

    def packed(uri: str, folder: object, *args: object, **kwargs: object) -> object:
        now = upload()
        if now is None:
            return pack(uri, folder, *args, **kwargs)
        now.start_packing(folder)
        made = pack(uri, folder, *args, **kwargs)
        now.finish()
        return made

    def asked(method: str, endpoint: str, *args: object, **kwargs: object) -> object:
        now, data = upload(), kwargs.get("data")
        if now is not None and method == "PUT" and isinstance(data, bytes):
            kwargs["data"] = now.start_sending(data)
        return ask(method, endpoint, *args, **kwargs)

    client._upload_package, client._do_request = packed, asked  # noqa: SLF001 - see above


def bytes_read() -> int:
    """Return the bytes this process has read from files; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])
    return 0


def import_ray() -> None:
    """Import Ray early, while the cluster still starts."""
    import ray.job_submission  # noqa: F401, PLC0415 - the import is the point


class GcsNodes:
    """Node liveness straight from GCS.

    A private API, since the public ones read the dashboard, which lags two seconds behind.
    Tried on Ray 2.40, 2.44, 2.49, 2.52, 2.55 and 2.60.
    """

    def __init__(self, address: str) -> None:
        from ray._raylet import GcsClient  # noqa: PLC0415 - Ray is imported as late as can be

        self._client = GcsClient(address=address)

    def list(self) -> list[dict[str, object]]:
        """Return all nodes in GCS, dead ones included."""
        found = self._client.get_all_node_info(timeout=_RPC_LIMIT)
        return [
            {
                "id": node_id.hex(),
                "ip": info.node_manager_address,
                "port": info.node_manager_port,
                "alive": info.state == 0,
                "head": info.is_head_node,
                **_resources(dict(info.resources_total)),
            }
            for node_id, info in found.items()
        ]


def _resources(total: Mapping[str, float]) -> dict[str, float]:
    """Return a node's GPUs, CPUs and memory."""
    names = {"gpus": "GPU", "cpus": "CPU", "memory": "memory"}
    return {ours: float(total.get(theirs, 0.0)) for ours, theirs in names.items()}


class Jobs:
    """Ray's job API."""

    def __init__(self, dashboard: str) -> None:
        from ray.job_submission import JobSubmissionClient  # noqa: PLC0415 - as late as can be

        self._client = JobSubmissionClient(dashboard)
        self._upload: UploadMeter | None = None
        meter_uploads(self._client, lambda: self._upload)

    def submit_once(self, job: Mapping[str, Any], upload: UploadMeter | None = None) -> None:
        """Submit a job unless its id exists: after a lost answer no second job may start.

        `upload` measures what is packed and sent.
        """
        self._upload = upload
        try:
            self._client.submit_job(
                entrypoint=job["entrypoint"],
                submission_id=job["id"],
                runtime_env=job["runtime_env"] or None,
            )
        except Exception:
            with suppress(Exception):  # report the first error
                self._client.get_job_info(job["id"])
                return
            raise
        finally:
            self._upload = None

    def has_job(self, job_id: str) -> bool:
        """Return whether Ray has a job of this id; raises where Ray does not answer."""
        return any(job.submission_id == job_id for job in self._client.list_jobs())

    def report(self, job_id: str) -> dict[str, object]:
        """Return the job's state."""
        info = self._client.get_job_info(job_id)
        return {
            "status": str(info.status.value),
            "message": _shorten(info.message or ""),
            "driver_exit_code": info.driver_exit_code,
            "error_type": str(info.error_type or ""),
            "ended": info.status.is_terminal(),
        }

    def follow_output(self, job_id: str, take: Callable[[str], None]) -> None:
        """Pass the driver's output to `take`, from its beginning until the job is over."""

        async def follow() -> None:
            async for text in self._client.tail_job_logs(job_id):
                take(text)

        asyncio.run(follow())

    def stop(self, job_id: str) -> None:
        """Ask Ray to stop the job."""
        self._client.stop_job(job_id)


def _shorten(message: str) -> str:
    """Keep a message's start and its end, which has the error of a failed job."""
    return (
        message
        if len(message) <= _MAX_MESSAGE
        else f"{message[:1000]}\n…\n{message[-_MAX_MESSAGE:]}"
    )


class GcsJobs:
    """A job's state from GCS, where its supervisor writes it, without the dashboard.

    A private API, since the public one needs the dashboard, which may hang while the job runs.
    Tried on Ray 2.60.
    """

    def __init__(self, address: str) -> None:
        from ray._raylet import GcsClient  # noqa: PLC0415 - Ray is imported as late as can be

        self._client = GcsClient(address=address)

    def report(self, job_id: str) -> dict[str, object] | None:
        """Return the job's state in GCS; None if it has none."""
        key = f"_ray_internal_job_info_{job_id}".encode()
        found = self._client.internal_kv_get(key, b"job", timeout=_RPC_LIMIT)
        if not found:
            return None
        info = json.loads(found)
        return {
            "status": str(info["status"]),
            "message": _shorten(info.get("message") or ""),
            "driver_exit_code": info.get("driver_exit_code"),
            "error_type": str(info.get("error_type") or ""),
            "ended": str(info["status"]) in _TERMINAL,
        }


def last_finished(dashboard: str) -> float | None:
    """Return when a task of the cluster finished last, in seconds since 1970; None: never.

    Ray's own pings of a job's supervisor do not count. Of very many tasks Ray returns the newest.
    Tried on Ray 2.60.
    """
    from ray.util.state import list_tasks  # noqa: PLC0415 - Ray is imported as late as can be

    filters = [("state", "=", "FINISHED"), ("name", "!=", f"{_SUPERVISOR}.ping")]
    tasks = list_tasks(dashboard, filters, _MAX_TASKS, _TASKS_LIMIT, True, False)  # noqa: FBT003 - theirs
    ends = [one.end_time_ms for one in tasks if not str(one.name).startswith(_SUPERVISOR)]
    return max((float(end) / 1000 for end in ends if end), default=None)


def is_final(error: Exception) -> bool:
    """Return whether retrying a submission cannot help."""
    if isinstance(error, (ValueError, TypeError)):
        return True  # refused by the client: a malformed runtime_env, a missing folder
    text = str(error)
    return "status code 413" in text or "status code 400" in text
