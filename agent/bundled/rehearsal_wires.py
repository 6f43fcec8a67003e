"""The requests of the asynchronous rehearsal to its engines: those of slime, or of prime-rl.

Each class has one framework's requests, its folders of weights, the order of its weight sync, and
its patience, so that an engine which is down does to this trainer what it does to the framework's:

- slime (weights by disk): pause all, flush all, update all, continue all; no timeout and no retry
- prime-rl (weights by filesystem): pause all, update all, resume all; ten tries, 300 and 720 s each

Both retry a request for samples 60 times, a second apart, at the next engine.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import Future, as_completed
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from agent.bundled.rehearsal_weights import write_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agent.bundled.rehearsal_weights import Policy

T = TypeVar("T")

UNTRAINED = -1
"""The version of an engine that has the weights of its start: SGLang calls it `default`."""
_DISCOVERY_SECONDS = 30.0  # slime's only request to an engine that has a timeout
PAUSE = 1.0  # seconds between two tries of slime's
_FLUSHES = 60  # tries
_TRIES = 10
_LONGEST_PAUSE = 10.0
_CONTROL_SECONDS = 300.0
_REFIT_SECONDS = 720.0
_READY_SECONDS = 1800.0
_ANSWER = re.compile(r"\\boxed\{(\d)\}")
_FINISHED = "stop"


class WireError(Exception):
    """A request that failed: which one, and why."""

    def __init__(self, request: str, why: object, status: int = 0) -> None:
        super().__init__(f"{request}: {why}")
        self.status = status  # 0 without a reply

    @property
    def may_pass(self) -> bool:
        """Return whether another try could succeed: all but a refusal of the request itself."""
        return not 400 <= self.status < 500


class EngineReply(NamedTuple):
    """One answer of an engine: with which weights, and which start of which engine."""

    answer: int
    version: int
    engine: str
    start: int


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(
    address: str, verb: str, body: object = None, seconds: float | None = None, method: str = "POST"
) -> Any:  # noqa: ANN401 - whatever JSON the reply has
    """Send one request; return the reply's JSON, or raise WireError."""
    text = send(address, verb, body, seconds, method)
    try:
        return json.loads(text)
    except ValueError as error:
        raise WireError(f"{method} {address}{verb}", error) from None


def send(
    address: str, verb: str, body: object = None, seconds: float | None = None, method: str = "POST"
) -> bytes:
    """Send one request; return the reply's body, or raise WireError."""
    base = address if "://" in address else f"http://{address}"
    url = f"{base.rstrip('/')}{verb}"
    data = None if method == "GET" else json.dumps(body or {}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - as set
    what = f"{method} {url}"
    try:
        with _opener.open(request, timeout=seconds) as reply:
            content: bytes = reply.read()
    except urllib.error.HTTPError as error:
        with error:
            text = error.read(200).decode(errors="replace").strip()
        raise WireError(what, f"{error.code} {text}", error.code) from None
    except urllib.error.URLError as error:
        raise WireError(what, error.reason) from None
    except (OSError, http.client.HTTPException) as error:  # the connection ends within a reply
        raise WireError(what, error or type(error).__name__) from None
    return content


def in_thread(run: Callable[[], T]) -> Future[T]:
    """Call a function in a thread that does not hold up the end of this process."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(run())
        except BaseException as problem:  # noqa: BLE001 - raised where the result is read
            future.set_exception(problem)

    threading.Thread(target=call, daemon=True).start()
    return future


class Wires:
    """What both frameworks share: the same request to all engines at once."""

    waits_for_samples = False
    """Whether the requests for the next step end before a weight sync begins."""

    def __init__(self, engines: Sequence[str]) -> None:
        self._engines = engines

    def _all(self, run: Callable[[str], None]) -> None:
        """Call a function for each engine at the same time; raise the first WireError."""
        calls = [in_thread(partial(run, engine)) for engine in self._engines]
        for call in as_completed(calls):
            call.result()


class SlimeWires(Wires):
    """slime's trainer with external engines and weights by disk."""

    waits_for_samples = True

    def __init__(self, engines: Sequence[str], folder: Path, *, keeps: bool = False) -> None:
        super().__init__(engines)
        self._folder = folder
        self._keeps = keeps

    def first_version(self, _resumed: int) -> int:
        """Return the version of the first weights: it counts from 1 in each start."""
        return 1

    def wait_for_engines(self) -> None:
        """Read what each engine is, once."""
        self._all(lambda engine: _get(engine, "/server_info", _DISCOVERY_SECONDS))

    def generate(self, engine: str, prompt: str, count: int) -> list[EngineReply]:
        """Return answers to a prompt."""
        wanted = {"n": count, "temperature": 1.0, "max_new_tokens": 16}
        body = {"text": prompt, "sampling_params": wanted, "return_logprob": True}
        replied = ask(engine, "/generate", body)
        replies = []
        for one in replied if isinstance(replied, list) else [replied]:
            about = one["meta_info"]
            why = about["finish_reason"]["type"]
            version = about["weight_version"]
            replies.append(_reply_of(engine, one["text"], why, version, about))
        return replies

    def sync(self, policy: Policy, version: int) -> int:
        """Have all engines load a policy; return its version."""
        folder = self._folder / f"weight_v{version:06d}"
        shutil.rmtree(folder, ignore_errors=True)
        write_weights(folder, policy)
        refit = {"model_path": str(folder), "weight_version": str(version)}
        self._all(lambda engine: _post(engine, "/pause_generation", {}))
        self._all(self._flush)
        self._all(lambda engine: _post(engine, "/update_weights_from_disk", refit))
        if not self._keeps:
            shutil.rmtree(folder)
        self._all(lambda engine: _post(engine, "/continue_generation", {}))
        return version

    def _flush(self, engine: str) -> None:
        for _ in range(_FLUSHES):
            failure = _failure_of(partial(_get, engine, "/flush_cache"))
            if failure is None:
                return
            if not failure.status:
                raise failure
            time.sleep(PAUSE)
        raise WireError(f"GET {engine}/flush_cache", f"requests run after {_FLUSHES} tries")


class PrimeWires(Wires):
    """prime-rl's orchestrator and trainer with weights by the filesystem."""

    def __init__(self, engines: Sequence[str], folder: Path) -> None:
        super().__init__(engines)
        self._folder = folder / "broadcasts"

    def first_version(self, resumed: int) -> int:
        """Return the version of the first weights: the step that it resumes from."""
        return resumed

    def wait_for_engines(self) -> None:
        """Wait until each engine is healthy and lists its model."""
        until = time.monotonic() + _READY_SECONDS
        self._all(lambda engine: self._wait_for(engine, until))

    def generate(self, engine: str, prompt: str, count: int) -> list[EngineReply]:
        """Return answers to a prompt; the version is a field that only our engine sends."""
        messages = [{"role": "user", "content": prompt}]
        body = {"model": "rehearsal", "messages": messages, "n": count, "temperature": 1.0}
        replied = ask(engine, "/v1/chat/completions", body)
        version = replied["weight_version"]
        return [
            _reply_of(
                engine, choice["message"]["content"], choice["finish_reason"], version, replied
            )
            for choice in replied["choices"]
        ]

    def sync(self, policy: Policy, version: int) -> int:
        """Have all engines load the newest complete policy; return its version.

        The watcher takes the highest one, also where a former attempt has left it.
        """
        folder = self._folder / f"step_{version}"
        shutil.rmtree(folder, ignore_errors=True)
        write_weights(folder, policy)
        (folder / "STABLE").touch()
        shutil.rmtree(self._folder / f"step_{version - 2}", ignore_errors=True)

        complete = [path.parent.name for path in self._folder.glob("step_*/STABLE")]
        newest = max(int(name.removeprefix("step_")) for name in complete)
        loaded = self._folder / f"step_{newest}"
        (loaded / "NCCL_READY").touch()
        self._control("/pause?mode=keep&clear_cache=false", {}, _CONTROL_SECONDS)
        self._control("/update_weights", {"weight_dir": str(loaded)}, _REFIT_SECONDS)
        self._control("/resume", {}, _CONTROL_SECONDS)
        return newest

    def _control(self, verb: str, body: object, seconds: float) -> None:
        self._all(lambda engine: self._tried(engine, verb, body, seconds))

    @staticmethod
    def _tried(engine: str, verb: str, body: object, seconds: float) -> None:
        """Send a request ten times, unless it is refused for what it is."""
        for number in range(_TRIES):
            failure = _failure_of(partial(_post, engine, verb, body, seconds))
            if failure is None:
                return
            if not failure.may_pass or number == _TRIES - 1:
                raise failure
            time.sleep(min(2.0**number, _LONGEST_PAUSE))

    @staticmethod
    def _wait_for(engine: str, until: float) -> None:
        for verb in ("/health", "/v1/models"):
            while failure := _failure_of(partial(_get, engine, verb, _LONGEST_PAUSE)):
                if time.monotonic() > until:
                    raise failure
                time.sleep(PAUSE)


def _failure_of(request: Callable[[], None]) -> WireError | None:
    """Send a request; return why it failed, or None."""
    try:
        request()
    except WireError as failure:
        return failure
    return None


def _post(engine: str, verb: str, body: object, seconds: float | None = None) -> None:
    send(engine, verb, body, seconds)


def _get(engine: str, verb: str, seconds: float | None = None) -> None:
    send(engine, verb, seconds=seconds, method="GET")


def _reply_of(
    engine: str, text: str, why: str, version: object, about: dict[str, Any]
) -> EngineReply:
    """Return an answer, or raise WireError where the engine has not finished it."""
    answer = _ANSWER.search(text)
    if why != _FINISHED or answer is None:
        raise WireError(engine, f"{text!r} is not finished ({why})")
    number = int(version) if str(version).isdecimal() else UNTRAINED  # type: ignore[call-overload]
    return EngineReply(int(answer[1]), number, str(about.get("engine")), int(about.get("start", 0)))
