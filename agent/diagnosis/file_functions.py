"""Rows about files and answers that are read as JSON, and are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError

_OF_CLIENTS = ("requests", "httpx", "aiohttp", "urllib3", "openai", "httpcore")
_OF_MODELS = ("transformers", "tokenizers", "sentence_transformers", "vllm/transformers_utils")
_MODEL_FUNCTIONS = {"from_pretrained", "get_config_dict", "_dict_from_json_file"}


def not_json(error: ParsedError) -> Cause | None:
    """A text is read as JSON and is none: of a server, of a model's folder, or of the job."""
    if error.name != "JSONDecodeError" or not error.frames:
        return None
    why = error.message.partition("\n")[0].strip()
    if error.is_in(*_OF_CLIENTS):
        return Cause(
            "not JSON",
            f"the answer of a server is no JSON ({why})",
            "Look what the server answers (`curl -i`): an error page, or another program",
        )
    functions = {frame.function for frame in error.frames}
    if error.is_in(*_OF_MODELS) and functions & _MODEL_FUNCTIONS:
        return Cause(
            "not JSON",
            f"a JSON file in the model's folder is empty or broken ({why})",
            "Compare its config.json and tokenizer files with the hub's: a download may have ended "
            "early, or left a Git LFS pointer",
        )
    reader = next(
        (frame for frame in reversed(error.frames) if "/json/" not in frame.file), error.frames[-1]
    )
    return Cause(
        "not JSON",
        f"a text that is read as JSON is none ({why}), in {reader.file}:{reader.line}",
        "Look at what it reads: an empty file or answer, or one object a line (JSONL)",
    )
