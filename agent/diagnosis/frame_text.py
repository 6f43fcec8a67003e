"""The frames of an error as one text, for the expressions of rows: who asks whom.

The first line is the exception with its message, the next ones are its frames from the innermost
one outwards, and the last ones what it was raised from:

    KeyError: 'prompt'
    /w/data.py:30 in read: x = row['prompt']
    /w/train.py:3 in main: read(rows)
    from ValueError: the row is empty
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError

_LONGEST_PLACE = 60  # characters of a sentence
_FOLDERS_SHOWN = 3  # of a longer path, the file among them
_MOST_OF_LINE = 600  # characters of the exception, and of each line of code
_IMPORTS = "<frozen importlib"
_OF_PYTHON = re.compile(r"/lib/python3[\d.]{0,6}/(?!site-packages|dist-packages)|^<")
_PACKAGE = re.compile(r"-packages/(?P<name>\w{1,80})(?!.{0,400}-packages/)")
_FRAMEWORK = re.compile(
    r"/(?P<name>verl|openrlhf|trl|nemo_rl|slime|slime_plugins|skyrl_train|skyrl|areal|verifiers"
    r"|prime_rl|swift|vllm|sglang|megatron|deepspeed|accelerate|torchtitan|transformers)/"
)


def frame_text(error: ParsedError) -> str:
    """Return the exception, its frames from the innermost outwards, and its causes."""
    message = error.message.partition("\n")[0].strip()
    head = f"{error.name}: {message}" if message else error.name
    lines = [(head if error.type else error.line)[:_MOST_OF_LINE]]
    lines += [
        f"{frame.file}:{frame.line} in {frame.function}: {frame.code}"
        for frame in reversed(error.frames)
        if not frame.file.startswith(_IMPORTS)
    ]
    if error.cause is not None:
        lines += [f"from {part.line[:_MOST_OF_LINE]}" for part in error.cause.chain()]
    return "\n".join(lines)


def place_of(error: ParsedError) -> str:
    """Return where it was raised: the innermost frame that is no part of Python itself."""
    frames = [frame for frame in error.frames if _OF_PYTHON.search(frame.file) is None]
    shown = frames[-1:] or error.frames[-1:]
    return f"{shown[0].file}:{shown[0].line}" if shown else ""


def user_of(error: ParsedError, package: str) -> str:
    """Return who uses a package: the package or framework that does, or the file of the job."""
    for frame in reversed(error.frames):
        if _OF_PYTHON.search(frame.file) is not None:
            continue
        found = _PACKAGE.search(frame.file) or _FRAMEWORK.search(frame.file)
        if found is None:
            return _short(f"{frame.file}:{frame.line}")
        if found["name"] != package:
            return found["name"]
    return "the job"


def _short(place: str) -> str:
    """Return a place in a file without its outer folders if it is long."""
    if len(place) <= _LONGEST_PLACE:
        return place
    return f"…/{'/'.join(place.split('/')[-_FOLDERS_SHOWN:])}"
