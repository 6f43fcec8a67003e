"""Rows about files: what the system refuses, what does not exist, and what is no JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause
from agent.diagnosis.errors.parsed_error import ErrorKind

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError

_ERRNO = re.compile(
    r"^\[Errno (?P<number>\d{1,3})\] (?P<text>[^:'\n]{3,60}?)"
    r"(?:: '(?P<path>[^']{1,300})(?:' -> '(?P<to>[^']{1,300}))?|$)"
)
_BY_ERRNO = {
    5: (
        "reading or writing {path} failed: its disk or network disk",
        "Look at that mount and at `dmesg` of the node; take another disk, or another machine",
    ),
    14: (
        "a read or write at {path} failed: the system could not use the buffer for it",
        "Some network disks and direct reads fail so: try the same on a local disk",
    ),
    16: (
        "{path} is in use by another process, or is a mount",
        "Look who uses it (`lsof`, `fuser -v`)",
    ),
    18: (
        "{path} is to be moved to another file system",
        "Keep the temporary folder and its target on one disk",
    ),
    20: (
        "a part of the path {path} is a file, not a folder",
        "Correct the path, or remove that file",
    ),
    26: (
        "{path} is a program that one process runs while another has it open to write",
        "End the one that runs it, or close the file before it runs; another name helps too",
    ),
    36: (
        "a path or a name in it is too long: {path}",
        "Give the run or the file a shorter name; if it is no path, a text was passed for one",
    ),
    37: (
        "{path} cannot be locked: its network disk has no locks, or their server does not answer",
        "Mount it with locks (`nolock` for local ones), or keep the file on a local disk",
    ),
    38: (
        "a call on {path} is not there: its file system, the kernel or a sandbox lacks it",
        "Try the same on a local disk: if it fails there too, it is the kernel or the container",
    ),
    39: (
        "the folder {path} is to be removed or replaced, and is not empty",
        "Another process or rank writes there, or an earlier run left files: let only one do it",
    ),
    40: ("links lead in a circle at {path}", "Correct the symbolic link"),
    95: (
        "the file system of {path} does not support this call",
        "Keep that file on another disk: network and overlay disks lack some calls",
    ),
}
"""What the system refuses by its number, and what to do."""
_MISSING = re.compile(r"^\[Errno 2\] No such file or directory: '(?P<path>[^']{1,300})'")
_STARTS = re.compile(r"_execute_child|_posix_spawn|Popen")
_RACES = re.compile(
    r"rmtree|unlink|\b(?:os|shutil)\.(?:remove|rename|replace|rmdir|stat|move)|\.(?:rename|replace"
    r"|stat)\(|getsize|getmtime|scandir|listdir|glob"
)
"""What another rank or a clean-up may do at the same time."""
_WRITES = re.compile(
    r"\bopen\([^\n]{1,120}[\"'][wax]b?\+?b?[\"']|\.(?:to_json|to_csv|to_parquet|savefig|write_text"
    r"|write_bytes|mkdir)\(|\bos\.mkdir\(|\.save\(|FileHandler"
)
_OF_FILES = re.compile(
    r"\b(?:open|write\w*|read\w*|flush|save\w*|load\w*|dump|copy\w*|close)\b|\.write\("
)
_OF_NO_FILE = re.compile(
    r"/logging/|/tqdm/|/rich/|/click/|\bstd(?:out|err)\b|\bprint\(|/socket\.py|/ssl\.py|/pty\.py"
    r"|pexpect|ptyprocess|\bmaster(?:_fd)?\b|/multiprocessing/|/asyncio/|/subprocess\.py|/selectors\.py"
    r"|/uvloop/|\bconsole\b|\bterminal\b|\bsock\w*\b|\bpipe\w*\b|\bos\.(?:read|write)\("
)
"""A call without a path there is one on a terminal, a pipe or a socket."""
_OF_KERNEL = re.compile(r"^/(?:proc|sys|dev)/(?!shm/)")
_REPLACES = 39  # a folder that is not empty
_PASSING = re.compile(
    r"^/(?:proc|sys|dev)/|/te?mp\b|\.te?mp\b|te?mp_|\.lock\b|/session_|/shm/|\.sock|\.pid\b|cache"
)
_OF_CLIENTS = ("requests", "httpx", "aiohttp", "urllib3", "openai", "httpcore")
_LONGEST_PATH = 60
_OF_MODELS = ("transformers", "tokenizers", "sentence_transformers", "vllm/transformers_utils")
_MODEL_FUNCTIONS = {"from_pretrained", "get_config_dict", "_dict_from_json_file"}


def not_json(error: ParsedError) -> Cause | None:
    """A text is read as JSON and is none: of a server, of a model's folder, or of the job."""
    if error.name != "JSONDecodeError" or not error.frames:
        return None
    why = error.message.partition("\n")[0].strip()
    reader = next(
        (frame for frame in reversed(error.frames) if "/json/" not in frame.file), error.frames[-1]
    )
    if any(f"/{client}/" in reader.file for client in _OF_CLIENTS):
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
    return Cause(
        "not JSON",
        f"a text that is read as JSON is none ({why}), in {reader.file}:{reader.line}",
        "Look at what it reads: an empty file or answer, or one object a line (JSONL)",
    )


def refused_by_the_system(error: ParsedError) -> Cause | None:
    """The system refuses a call on a file: its number shows why."""
    found = _ERRNO.match(error.message)
    if error.kind is not ErrorKind.PYTHON or found is None:
        return None
    known = _BY_ERRNO.get(int(found["number"]))
    if known is None:
        return None
    sentence, remedy = known
    if not found["path"] and not (error.frames and _is_of_file(error)):
        return None  # a socket, a device or a semaphore
    named = found["path"] or "a file"
    if found["to"] and int(found["number"]) == _REPLACES:
        named = found["to"]
    if _OF_KERNEL.match(named):
        return None  # a device, or a file that the kernel makes
    path = short_path(named)
    return Cause("file refused", sentence.format(path=path), remedy)


def _is_of_file(error: ParsedError) -> bool:
    """Return whether a call without a path is one on a file."""
    frame = error.frames[-1]
    if _OF_NO_FILE.search(f"{frame.file} {frame.code}") is not None:
        return False
    return _OF_FILES.search(f"{frame.function} {frame.code}") is not None


def missing_program(error: ParsedError) -> Cause | None:
    """A process starts a program that the image lacks: the frames show that it starts one."""
    found = _MISSING.match(error.message)
    if error.name != "FileNotFoundError" or found is None or not error.frames:
        return None
    starts = any(_STARTS.search(frame.function) for frame in error.frames[-3:])
    if not starts:
        return None
    name = short_path(found["path"])
    if " " in name:
        return Cause(
            "program missing",
            f"the whole text {name} is taken for the name of a program, or that does not exist",
            "Pass a list of words, or shell=True; a path with spaces is one word",
        )
    if "/" in name:
        return Cause(
            "program missing",
            f"the program or folder {name}, with which the job starts a process, does not exist",
            "Correct the path, or bring it to every node: the image, or a disk that all share",
        )
    if name == "nvidia-smi":
        return Cause(
            "program missing",
            "the container has no nvidia-smi, which the job starts",
            "The container runtime brings it with the driver: start the container with GPUs "
            "(--gpus all, nvidia.com/gpu), and look whether PATH has /usr/bin",
        )
    return Cause(
        "program missing",
        f"the image lacks the program {name}, which the job starts",
        "Install it in the image, or put its folder into PATH; a script has to be on every node",
    )


def missing_file(error: ParsedError) -> Cause | None:
    """A file does not exist, and none that comes and goes by itself."""
    found = _MISSING.match(error.message)
    if error.name != "FileNotFoundError" or found is None or not error.frames:
        return None
    innermost = " ".join(f"{frame.function} {frame.code}" for frame in error.frames[-3:])
    is_race = " -> " in error.message or _RACES.search(innermost) is not None
    if is_race or _PASSING.search(found["path"]) is not None:
        return None
    reader = next(
        (frame for frame in reversed(error.frames) if "/lib/python" not in frame.file),
        error.frames[-1],
    )
    where = f"{reader.file}:{reader.line}"
    if _WRITES.search(error.frames[-1].code) or _WRITES.search(reader.code):
        return Cause(
            "file missing",
            f"the folder of {short_path(found['path'])} does not exist, which is to be written "
            f"({where})",
            "Make it first (os.makedirs), or correct the path; is its disk mounted on this node?",
        )
    if not found["path"].startswith("/"):
        return Cause(
            "file missing",
            f"{short_path(found['path'])} does not exist in the job's working folder ({where})",
            "Start the job in the right folder, or give the whole path; every node needs the file",
        )
    return Cause(
        "file missing",
        f"{short_path(found['path'])} does not exist on this node ({where})",
        "Correct the path, or bring the file to every node: the image, or a disk that all share",
    )


def incomplete_checkpoint(error: ParsedError) -> Cause | None:
    """A distributed checkpoint lacks its `.metadata`, which is written last."""
    if error.name != "AssertionError" or not error.frames:
        return None
    frame = error.frames[-1]
    if (
        "torch/distributed/checkpoint/" not in frame.file
        or "metadata is not None" not in frame.code
    ):
        return None
    return Cause(
        "checkpoint incomplete",
        "the distributed checkpoint is incomplete: it lacks .metadata, which is written last",
        "Resume from an older checkpoint: this one was cut off, or is not on a disk that all share",
    )


def short_path(path: str) -> str:
    """Return a path that a sentence can hold: its end shows most."""
    return path if len(path) <= _LONGEST_PATH else f"…{path[-_LONGEST_PATH:]}"
