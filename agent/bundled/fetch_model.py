"""Fetch a model from the hub into this node's cache before many processes need it.

`huggingface_hub` shows the progress, resumes partial downloads and reads HF_HOME, HF_ENDPOINT,
HF_TOKEN and HF_HUB_OFFLINE. If weights exist in several formats, only safetensors are fetched, as
vLLM and transformers do: other formats are pickles, which run code when they are loaded. The last
line names the commit.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_FOR_OTHERS = ("*.h5", "*.msgpack", "*.onnx", "*.gguf", "*.tflite", "*.ot", "original/*")
"""Files that no supported framework reads: weights for other libraries, and second copies."""
_FAST_MODE_MEMORY = 64 << 30
_FAST_MODE_CPUS = 8
_PAUSES = (2.0, 4.0, 8.0, 16.0, 32.0)  # seconds between retries of errors that may pass


def fetch(model: str, revision: str | None) -> str:
    """Download a model into the cache; return its folder, whose name is the commit."""
    hub = importlib.import_module("huggingface_hub")
    unread = [*_FOR_OTHERS, *_OTHER_WEIGHTS]
    constants = importlib.import_module("huggingface_hub.constants")
    is_offline = constants.HF_HUB_OFFLINE
    options: dict[str, object] = {"local_files_only": True} if is_offline else {}
    if not is_offline:  # offline the list of files is unknown: missing .bin files are no error
        siblings = hub.HfApi().model_info(model, revision=revision).siblings or []
        if not any(file.rfilename.endswith(".safetensors") for file in siblings):
            note = "has no safetensors: its weights run code when they are loaded"
            print(f"{model} {note}", flush=True)
            unread = [*_FOR_OTHERS]
    return str(hub.snapshot_download(model, revision=revision, ignore_patterns=unread, **options))


def use_fast_mode(environ: MutableMapping[str, str]) -> None:
    """Let Xet use all CPUs and much memory, where there is enough of both; a user's value wins.

    Its library and the hub's read the variable when they are loaded.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if memory >= _FAST_MODE_MEMORY and len(os.sched_getaffinity(0)) >= _FAST_MODE_CPUS:
        environ.setdefault("HF_XET_HIGH_PERFORMANCE", "1")


def explain(error: Exception) -> tuple[str, bool]:
    """Return an error with its remedy, and whether a retry is useless."""
    if isinstance(error, ImportError):
        return str(error), True
    constants = importlib.import_module("huggingface_hub.constants")
    where = constants.ENDPOINT
    cache = constants.HF_HUB_CACHE
    answers = {  # by class name, since their modules differ between versions
        "GatedRepoError": f"the model is gated: accept its terms on {where}, and set HF_TOKEN",
        "HFValidationError": "it is no id of a model: set one such as Qwen/Qwen2.5-7B",
        "RepositoryNotFoundError": f"{where} has no such model, or HF_TOKEN gives no access",
        "RevisionNotFoundError": f"{where} has no such revision of it: check AGENT_MODEL_REVISION",
    }
    for kind in type(error).__mro__:
        if kind.__name__ in answers:
            return answers[kind.__name__], True
    if constants.HF_HUB_OFFLINE:
        return f"it is not complete in {cache}, and HF_HUB_OFFLINE prevents the download", True
    if getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT}:
        return f"no space left in {cache}: free some, or set HF_HOME to a larger disk", True
    why = " ".join(str(error).split()) or type(error).__name__
    return f"{where}: {why[:300]}", False


def main(argv: Sequence[str]) -> int:
    """Fetch one model: return 0, or 1 with the reason as the last line."""
    parser = argparse.ArgumentParser(prog="pod-agent fetch-model", description=__doc__)
    parser.add_argument("model", help="id on the hub, such as Qwen/Qwen2.5-7B")
    parser.add_argument("--revision", help="branch, tag or commit; default: the newest")
    asked = parser.parse_args(argv)
    model = asked.model
    use_fast_mode(os.environ)
    for pause in (*_PAUSES, None):
        try:
            folder = fetch(model, asked.revision)
            print(f"{model} is in {folder}: commit {Path(folder).name}", flush=True)
        except Exception as problem:  # noqa: BLE001, PERF203 - each version of the hub raises others
            why, is_final = explain(problem)
            print(f"{model}: {why}", file=sys.stderr, flush=True)
            if is_final or pause is None:
                return 1
            print(f"trying again in {pause:g} s", file=sys.stderr, flush=True)
            time.sleep(pause)
        else:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
