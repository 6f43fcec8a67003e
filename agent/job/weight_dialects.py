"""How trainers update the weights of engines: the paths, bodies and replies of each dialect.

A dialect is what a trainer's framework and its engines say to each other over HTTP while weights
are on a disk: `weights` of a service names it. A new framework is a row of `DIALECTS`.

- `pause`, `resume`: no engine gets requests between them
- `update`: the engine loads a folder; the body names it and, in some dialects, its version
- `other`: a request to exactly one engine that changes no weights
- `discovery`: a question that any engine of the group answers alike

All other paths are data: any engine with the current weights may answer.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from agent.base.typed import decode
from agent.base.value import Value

VerbKind = Literal["pause", "resume", "update", "other", "discovery"]

_LAST_NUMBER = re.compile(r"(\d+)/*$")
_OK = '{"status": "ok"}'


class EngineVerb(Value):
    """One path of a dialect."""

    path: str
    kind: VerbKind
    reply: str = _OK
    """What a trainer gets for an engine that is down: the least that it accepts."""
    folder: str = ""
    """The key of the folder in the body of an update."""
    version: str = ""
    """The key of the version there; '' for the number at the end of the folder's name."""
    takes_long: bool = False
    """Whether an engine may work on it for as long as on an update."""


class Dialect(Value):
    """The verbs of one kind of engine."""

    name: str
    verbs: tuple[EngineVerb, ...]
    resume: tuple[str, str]
    """Path and body of the request by which a front resumes an engine."""


_SGLANG_UPDATED = '{"success": true, "message": "", "num_paused_requests": 0}'
_SGLANG_DONE = '{"success": true, "message": ""}'
_SGLANG_LOADS = '{"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}'


def _discovery(*paths: str) -> tuple[EngineVerb, ...]:
    return tuple(EngineVerb(path, "discovery") for path in paths)


DIALECTS = {
    # slime, miles, AReaL on SGLang; SGLang 0.5
    "sglang": Dialect(
        "sglang",
        (
            EngineVerb("/pause_generation", "pause"),
            EngineVerb("/continue_generation", "resume"),
            EngineVerb(
                *("/update_weights_from_disk", "update", _SGLANG_UPDATED),
                folder="model_path",
                version="weight_version",
            ),
            EngineVerb("/update_weight_version", "other", _SGLANG_DONE),
            EngineVerb(
                "/pull_weights", "other", '{"success": true, "message": ""}', takes_long=True
            ),
            EngineVerb("/flush_cache", "other", ""),
            EngineVerb("/abort_request", "other", ""),
            EngineVerb("/v1/loads", "other", _SGLANG_LOADS),
            EngineVerb("/get_load", "other", "[]"),
            EngineVerb("/load_lora_adapter", "other", _SGLANG_DONE, takes_long=True),
            EngineVerb("/unload_lora_adapter", "other", _SGLANG_DONE),
            EngineVerb("/release_memory_occupation", "other", "", takes_long=True),
            EngineVerb("/resume_memory_occupation", "other", "", takes_long=True),
            EngineVerb("/metrics", "other", ""),
            *_discovery("/health", "/health_generate", "/server_info", "/get_server_info"),
            *_discovery("/model_info", "/get_model_info", "/v1/models"),
        ),
        resume=("/continue_generation", "{}"),
    ),
    # prime-rl 0.8: vLLM with its own server
    "prime-rl": Dialect(
        "prime-rl",
        (
            EngineVerb("/pause", "pause"),
            EngineVerb("/resume", "resume"),
            EngineVerb("/update_weights", "update", folder="weight_dir"),
            EngineVerb("/load_lora_adapter", "update", folder="lora_path"),
            EngineVerb("/v1/load_lora_adapter", "update", folder="lora_path"),
            EngineVerb("/unload_lora_adapter", "other"),
            EngineVerb("/reset_prefix_cache", "other"),
            EngineVerb("/metrics", "other", ""),
            *_discovery("/health", "/liveness", "/ping", "/version", "/v1/models"),
        ),
        resume=("/resume", ""),
    ),
}


def update_of(verb: EngineVerb, body: bytes) -> tuple[str, str]:
    """Return folder and version of an update's body; two empty texts if it names no folder."""
    try:
        fields = decode(body, dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "", ""
    folder = fields.get(verb.folder)
    if not isinstance(folder, str) or not folder:
        return "", ""
    version = fields.get(verb.version) if verb.version else None
    if isinstance(version, (str, int)) and str(version):
        return folder, str(version)
    number = _LAST_NUMBER.search(folder)
    return folder, str(int(number[1])) if number else folder.rstrip("/").rpartition("/")[2]


def with_folder(verb: EngineVerb, body: bytes, folder: str) -> bytes:
    """Return an update's body with another folder."""
    return msgspec.json.encode({**decode(body, dict[str, object]), verb.folder: folder})
