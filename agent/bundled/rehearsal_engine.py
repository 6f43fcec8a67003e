"""A stand-in for an inference engine, with the requests of SGLang and of prime-rl.

It loads, listens, draws answers from its policy, and takes new weights from a folder. It sleeps
where a GPU would work, and misbehaves when asked to. Each reply to a generation has the version of
the weights that drew it, the engine's name and the number of its start; so has each line of its
log, one for each generation and each verb that controls it.

    pod-agent rehearsal-engine --host 127.0.0.1 --port 8100 --log engine.jsonl
    curl -d '{"text": "What is 3+4?"}' 127.0.0.1:8100/generate
    curl -d '{"name": "refit-hangs"}' 127.0.0.1:8100/fault
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web

from agent.base.arguments import VerbParser
from agent.bundled.rehearsal import ANSWERS, probabilities, response_of
from agent.bundled.rehearsal_weights import Policy, read_weights
from agent.serving.bodies import Bodies
from agent.serving.program import Program
from agent.serving.replies import error_reply

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from aiohttp.typedefs import Handler

MODEL = "rehearsal"
UNTRAINED = "default"
"""The version of the weights of its start, as SGLang calls it."""
FAULTS = {
    "none": "work as usual",
    "probes-only": "answer probes, and no generation",
    "fails": "answer probes, and 500 to each generation",
    "refit-slow": "take `seconds` longer for each refit",
    "refit-hangs": "never answer a refit",
    "refit-lost": "answer a refit, and stay at the old weights and version",
    "unavailable": "answer 503 to everything",
    "exit": "exit with 1 at once",
}
"""What `POST /fault {"name": …}` and --fault make it do; SIGSTOP freezes it."""
_PROBES = ("/health", "/health_generate", "/liveness")
_GENERATIONS = ("/generate", "/v1/chat/completions")
_FAULT = "/fault"
_MAX_BODY = 1 << 20
_MOST_MEMORY = 64 << 20
_MOST_ANSWERS = 1024  # of one request
_MOST_TOKENS = 4096
_STARTED = "start"


class Drawn(NamedTuple):
    """The answers of one generation with their log-probabilities; none if it was aborted."""

    answers: list[tuple[int, float]]
    version: str
    is_aborted: bool = False


class BadBodyError(Exception):
    """An error in a request, naming the field."""


class EngineLog:
    """The file with a line of JSON for each start, generation and control verb of an engine."""

    def __init__(self, file: Path | None, engine: str) -> None:
        self.engine = engine
        self.start = 1
        self._out = None
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            former = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
            self.start += sum(_is_start(line) for line in former)
            self._out = file.open("a", encoding="utf-8", buffering=1)  # a line at a time
        self.note(_STARTED, UNTRAINED)

    @property
    def origin(self) -> dict[str, object]:
        """Return which start of which engine this is, as replies have it."""
        return {"engine": self.engine, "start": self.start}

    def note(self, what: str, version: str) -> None:
        """Write a line."""
        if self._out is not None:
            line = {"at": time.time(), "what": what, "version": version, **self.origin}
            self._out.write(json.dumps(line) + "\n")


def _is_start(line: str) -> bool:
    with contextlib.suppress(ValueError):  # the last line of one that was killed may be cut short
        return bool(json.loads(line)["what"] == _STARTED)
    return False


class Engine:
    """The weights, the generations that run, and the fault: an engine without its HTTP."""

    def __init__(self, policy: Policy, log: EngineLog, request: float, refit: float) -> None:
        self.policy = policy
        self.version = UNTRAINED
        self.running = 0
        self.log = log
        self.fault = "none"
        self.fault_seconds = 0.0
        self._request_seconds = request
        self._refit_seconds = refit
        self._open = asyncio.Event()
        self._open.set()
        self._aborted = asyncio.Event()

    async def generate(self, prompt: str, count: int) -> Drawn:
        """Draw answers with the weights of the end of the generation, unless it is aborted."""
        if self.fault == "probes-only":
            await _never()
        await self._open.wait()
        aborted = self._aborted
        self.running += 1
        try:
            with contextlib.suppress(asyncio.TimeoutError):  # another class until Python 3.11
                await asyncio.wait_for(aborted.wait(), self._request_seconds)
            if not aborted.is_set():
                await self._open.wait()  # it was paused meanwhile, and keeps its requests
        finally:
            self.running -= 1
        if aborted.is_set():
            drawn = Drawn([], self.version, is_aborted=True)
        else:
            drawn = Drawn(self._draw(prompt, count), self.version)
        self.log.note("generate", self.version)
        return drawn

    def _draw(self, prompt: str, count: int) -> list[tuple[int, float]]:
        weights = probabilities(self.policy.get(prompt, [0.0] * ANSWERS))
        answers = random.choices(range(ANSWERS), weights, k=count)  # noqa: S311 - no secret
        return [(answer, math.log(weights[answer])) for answer in answers]

    def pause(self, *, aborts: bool) -> None:
        """Start no generation until `resume`; end those that run, or keep them until then."""
        if aborts:
            self.abort()
        self._open.clear()

    def resume(self) -> None:
        """Let generations go on."""
        self._open.set()

    def abort(self) -> None:
        """End all generations that run."""
        self._aborted.set()
        self._aborted = asyncio.Event()

    async def refit(self, folder: str, version: str) -> None:
        """Load weights from a folder; raise OSError or ValueError if they are not complete."""
        if self.fault == "refit-hangs":
            await _never()
        policy = await asyncio.to_thread(read_weights, Path(folder))
        is_slow = self.fault == "refit-slow"
        await asyncio.sleep(self._refit_seconds + (self.fault_seconds if is_slow else 0.0))
        if self.fault == "refit-lost":
            return
        self.policy = policy
        self.version = version


async def _never() -> None:
    """Wait until the client leaves."""
    await asyncio.Event().wait()


class EngineServer:
    """An engine's HTTP server: the verbs of SGLang and of prime-rl's vLLM, and one for faults."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._bodies = Bodies(_MAX_BODY, _MOST_MEMORY)
        self.program = Program("rehearsal engine", "/generate", self._json(self._generate))
        self.program.app.middlewares.append(self._unless_unavailable)
        add = self.program.app.router.add_route
        for path in _PROBES:
            add("GET", path, self._always({"status": "ok"}))
        for path in ("/server_info", "/get_server_info"):
            add("GET", path, self._always(_SERVER_INFO))
        for path in ("/model_info", "/get_model_info"):
            add("GET", path, self._model_info)
        add("GET", "/v1/models", self._always({"data": [_MODEL_OF_LIST]}))
        add("GET", "/v1/loads", self._loads)
        add("*", "/flush_cache", self._flush)
        add("POST", "/pause_generation", self._json(self._pause_generation))
        add("POST", "/continue_generation", self._json(self._resume))
        add("POST", "/abort_request", self._json(self._abort))
        add("POST", "/update_weights_from_disk", self._json(self._update_from_disk))
        add("POST", "/v1/chat/completions", self._json(self._chat))
        add("POST", "/pause", self._pause)
        add("POST", "/resume", self._json(self._resume))
        add("POST", "/update_weights", self._json(self._update_weights))
        add("POST", _FAULT, self._json(self._misbehave))

    # --- requests and replies ---------------------------------------------------------------------

    @staticmethod
    def _always(reply: object) -> Handler:
        """Return a handler that always replies the same."""

        async def handler(_request: web.Request) -> web.Response:
            return web.json_response(reply)

        return handler

    def _json(
        self, answer: Callable[[dict[str, Any]], Awaitable[web.Response | object]]
    ) -> Handler:
        """Return a handler that reads a JSON object, and replies with what `answer` returns."""

        async def handler(request: web.Request) -> web.StreamResponse:
            async with self._bodies.read(request) as body:
                data = bytes(body.data)
            try:
                replied = await answer(_object(data))
            except BadBodyError as problem:
                return error_reply(400, str(problem))
            return replied if isinstance(replied, web.Response) else web.json_response(replied)

        return handler

    @web.middleware
    async def _unless_unavailable(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        fault = self._engine.fault
        if fault == "unavailable" and request.path != _FAULT:
            return error_reply(503, "unavailable, as asked for")
        if fault == "fails" and request.path in _GENERATIONS:
            return error_reply(500, "fails, as asked for")
        return await handler(request)

    # --- what SGLang has --------------------------------------------------------------------------

    async def _model_info(self, _request: web.Request) -> web.Response:
        version = {"weight_version": self._engine.version}
        return web.json_response({"model_path": MODEL, "is_generation": True, **version})

    async def _loads(self, _request: web.Request) -> web.Response:
        load = {"num_running_reqs": self._engine.running, "num_waiting_reqs": 0}
        return web.json_response({"loads": [load]})

    async def _flush(self, _request: web.Request) -> web.Response:
        if self._engine.running:
            return error_reply(400, f"{self._engine.running} requests run")
        return web.json_response({"success": True})

    async def _generate(self, asked: dict[str, Any]) -> object:
        prompt = asked.get("text")
        if not isinstance(prompt, str):
            raise BadBodyError("text: expected a string")
        sampling = asked.get("sampling_params") or {}
        if not isinstance(sampling, dict):
            raise BadBodyError("sampling_params: expected an object")
        drawn = await self._engine.generate(prompt, _count(sampling.get("n", 1)))
        about: dict[str, object] = {"weight_version": drawn.version, "cached_tokens": 0}
        about |= self._engine.log.origin
        if drawn.is_aborted:
            about |= {"finish_reason": {"type": "abort"}, "output_token_logprobs": []}
            return {"text": "", "output_ids": [], "meta_info": about}
        replies = [
            {
                "text": response_of(answer),
                "output_ids": [answer],
                "meta_info": about
                | {
                    "finish_reason": {"type": "stop"},
                    "output_token_logprobs": [[log_probability, answer, None]],
                    "prompt_tokens": len(prompt.split()),
                    "completion_tokens": 1,
                },
            }
            for answer, log_probability in drawn.answers
        ]
        return replies if len(replies) > 1 else replies[0]

    async def _pause_generation(self, asked: dict[str, Any]) -> object:
        self._note("pause_generation")
        self._engine.pause(aborts=asked.get("mode", "abort") == "abort")
        return {"status": "ok"}

    async def _abort(self, _asked: dict[str, Any]) -> object:
        self._note("abort_request")
        self._engine.abort()
        return {"status": "ok"}

    async def _update_from_disk(self, asked: dict[str, Any]) -> web.Response:
        version = str(asked.get("weight_version", UNTRAINED))
        try:
            await self._engine.refit(_folder(asked, "model_path"), version)
        except (OSError, ValueError) as problem:
            reply = {"success": False, "message": str(problem), "num_paused_requests": 0}
            return web.json_response(reply, status=400)
        self._note("update_weights_from_disk")
        return web.json_response({"success": True, "message": "", "num_paused_requests": 0})

    # --- what prime-rl's vLLM has -----------------------------------------------------------------

    async def _chat(self, asked: dict[str, Any]) -> object:
        try:
            prompt = str(asked["messages"][-1]["content"])
        except (LookupError, TypeError):
            raise BadBodyError("messages: expected a list, the last with `content`") from None
        drawn = await self._engine.generate(prompt, _count(asked.get("n", 1)))
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": response_of(answer)},
                "finish_reason": "stop",
                "logprobs": {"content": [{"token": str(answer), "logprob": log_probability}]},
            }
            for index, (answer, log_probability) in enumerate(drawn.answers)
        ]
        spent = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(choices)}
        of_engine = {"weight_version": drawn.version, **self._engine.log.origin}
        reply: dict[str, object] = {"object": "chat.completion", "model": MODEL}
        return reply | {"choices": choices, "usage": spent} | of_engine

    async def _pause(self, request: web.Request) -> web.Response:
        self._note("pause")
        self._engine.pause(aborts=request.query.get("mode", "abort") == "abort")
        return web.json_response({"status": "paused"})

    async def _resume(self, _asked: dict[str, Any]) -> object:
        self._note("resume")
        self._engine.resume()
        return {"status": "ok"}

    async def _update_weights(self, asked: dict[str, Any]) -> web.Response:
        folder = _folder(asked, "weight_dir")
        try:
            await self._engine.refit(folder, _version_in(folder))
        except (OSError, ValueError) as problem:
            return error_reply(500, str(problem))
        self._note("update_weights")
        return web.json_response({"status": "ok"})

    # --- faults -----------------------------------------------------------------------------------

    async def _misbehave(self, asked: dict[str, Any]) -> object:
        name = str(asked.get("name"))
        seconds = asked.get("seconds", 0.0)
        if name not in FAULTS:
            raise BadBodyError(f"name: expected one of {', '.join(FAULTS)}")
        if not isinstance(seconds, int | float):
            raise BadBodyError("seconds: expected a number")
        self._note(f"fault {name}")
        self.program.say(f"from now on it will {FAULTS[name]}")
        if name == "exit":
            os._exit(1)
        self._engine.fault = name
        self._engine.fault_seconds = seconds
        return {"status": name}

    def _note(self, verb: str) -> None:
        self._engine.log.note(verb, self._engine.version)


_SERVER_INFO = {
    "tp_size": 1,
    "pp_size": 1,
    "num_gpus": 1,
    "disaggregation_mode": "null",
    "enable_memory_saver": False,
    "model_path": MODEL,
}
_MODEL_OF_LIST = {"id": MODEL, "object": "model", "max_model_len": _MOST_TOKENS}


def _object(data: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(data or b"{}")
    except (ValueError, RecursionError) as problem:
        raise BadBodyError(f"body: {problem}") from None
    if not isinstance(asked, dict):
        raise BadBodyError("body: expected an object")
    return asked


def _count(number: object) -> int:
    if not isinstance(number, int) or not 1 <= number <= _MOST_ANSWERS:
        raise BadBodyError(f"n: expected a whole number from 1 to {_MOST_ANSWERS}")
    return number


def _folder(asked: dict[str, Any], field: str) -> str:
    folder = asked.get(field)
    if not isinstance(folder, str):
        raise BadBodyError(f"{field}: expected a path")
    return folder


def _version_in(folder: str) -> str:
    """Return the version in a name as prime-rl has it, `step_7`."""
    number = re.search(r"step_(\d+)/*$", folder)
    return UNTRAINED if number is None else number[1]


def _arguments(argv: list[str]) -> argparse.Namespace:
    about = (__doc__ or "").partition("\n")[0]
    parser = VerbParser(prog="pod-agent rehearsal-engine", description=about)
    add = parser.add_argument
    add("--host", default="127.0.0.1", metavar="HOST[,HOST]", help="where to listen (%(default)s)")
    add("--port", type=int, default=8100, help="0 for any free one (%(default)s)")
    add("--name", default="", help="its name in replies and log (HOST:PORT)")
    weights = "folder of its first weights (an untrained policy)"
    add("--weights-from", type=Path, metavar="FOLDER", help=weights)
    log = "JSON lines, one for each generation and control verb; counts its starts"
    add("--log", type=Path, metavar="FILE", help=log)
    add("--load-seconds", type=float, default=0.0, help="until it listens (%(default)g)")
    add("--refit-seconds", type=float, default=0.0, help="of each refit (%(default)g)")
    add("--seconds-per-request", type=float, default=0.0, help="(%(default)g)")
    add("--fault", choices=FAULTS, default="none", help="from its start on (%(default)s)")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Serve until SIGTERM: 0 then, 1 for bad weights, 2 for a flag, 78 if it cannot listen."""
    options = _arguments(argv)
    log = EngineLog(options.log, options.name or f"{options.host}:{options.port}")
    try:
        policy = read_weights(options.weights_from) if options.weights_from else {}
    except (OSError, ValueError) as problem:
        print(f"rehearsal engine: {options.weights_from}: {problem}", file=sys.stderr)
        return 1
    time.sleep(options.load_seconds)
    engine = Engine(policy, log, options.seconds_per_request, options.refit_seconds)
    engine.fault = options.fault
    return EngineServer(engine).program.run(options.host, options.port)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
