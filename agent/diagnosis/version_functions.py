"""Rows about versions and arguments that need more than words: who calls what decides."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause
from agent.diagnosis.config_functions import framework_of

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError, TracebackFrame

_LONGEST_PLACE = 60  # characters of a sentence
_FOLDERS_SHOWN = 3  # of a longer path, the file among them
_PACKAGES = ("/site-packages/", "/dist-packages/")
_ARGUMENT = re.compile(
    r"(?:(?P<owner>[\w.<>]{1,80})\.)?(?P<function>\w{1,60})\(\) (?:got an unexpected keyword "
    r"argument '(?P<name>\w{1,60})'"
    r"|missing \d{1,3} required (?:positional|keyword-only) arguments?: (?P<lacks>'\w{1,60}')"
    r"|(?P<count>takes (?:from )?\d{1,3}[\w ]{0,30} positional arguments?) but )"
)
_MODULE = re.compile(r"No module named '(?P<name>[A-Za-z_]\w{0,60}(?:\.\w{1,60}){1,6})'\s*$")
_PUBLIC = frozenset(
    (
        "accelerate",
        "datasets",
        "deepspeed",
        "flash_attn",
        "huggingface_hub",
        "megatron",
        "numpy",
        "openrlhf",
        "pandas",
        "peft",
        "pydantic",
        "pyarrow",
        "ray",
        "sglang",
        "starlette",
        "tensordict",
        "torch",
        "torchvision",
        "transformer_engine",
        "triton",
        "trl",
        "unsloth",
        "vllm",
        "xformers",
    )
)
"""Packages whose modules move between releases; others may be folders of the job."""
_MEGATRON = "megatron"
_FOLDERS = frozenset(
    ("utils", "src", "data", "models", "tests", "examples", "scripts", "config", "configs", "tools")
)
_ATTRIBUTE = re.compile(r"'(?P<owner>\w{1,80})' object has no attribute '(?P<name>\w{1,80})'")
_CLASSES = re.compile(
    r"(?P<transformers>\w+(?:Attention(?:2)?|DecoderLayer|ForCausalLM|ForConditionalGeneration"
    r"|RotaryEmbedding|ImageProcessor|Cache))"
    r"|(?P<vllm>LLMEngine|AsyncLLM(?:Engine)?|EngineCore\w*|GPUModelRunner|VllmConfig|EngineArgs"
    r"|AsyncEngineArgs|SchedulerConfig|ParallelConfig|LLM|RequestOutput|CompletionOutput|SamplingParams)"
    r"|(?P<sglang>ServerArgs|TokenizerManager|ModelRunner)"
    r"|(?P<deepspeed>DeepSpeedEngine|DeepSpeedZeroOptimizer\w*|DeepSpeedCPUAdam)"
    r"|(?P<accelerate>Accelerator|AcceleratorState)|(?P<peft>PeftModel\w*|LoraModel|LoraConfig)"
    r"|(?P<trl>(?:SFT|DPO|GRPO|PPO|RLOO|Reward)(?:Config|Trainer))"
)
"""Classes whose attributes move between releases, by package."""
_FROM_SETTINGS = ("omega_conf_to_dataclass", "instantiate", "parse_args_into_dataclasses")
_ERROR_CLASS = re.compile(r"(?:Error|Exception|Exit|Timeout|Warning)$")
_REBUILDS = ("cloudpickle", "ray/_private", "multiprocessing", "concurrent/futures")
_REBUILDING = ("from_ray_exception", "as_instanceof_cause", "_rebuild_exc")
_BY_TARGET = ("_call_target", "instantiate_node")  # of a configuration with `_target_`


def package_of(file: str) -> str:
    """Return the installed package that a file belongs to; '' for other files."""
    for folder in _PACKAGES:
        _, found, rest = file.rpartition(folder)
        if found:
            return rest.partition("/")[0].removesuffix(".py")
    return ""


def user_of(error: ParsedError, package: str) -> str:
    """Return who uses a package: another package, or the file of the job that does."""
    for frame in reversed(error.frames):
        user = package_of(frame.file)
        if user not in {"", package}:
            return user
        if not user and not frame.file.startswith("<"):
            return f"{frame.file}:{frame.line}"
    return ""


def _short(place: str) -> str:
    """Return a place in a file without its outer folders if it is long."""
    if len(place) <= _LONGEST_PLACE:
        return place
    return f"…/{'/'.join(place.split('/')[-_FOLDERS_SHOWN:])}"


def lacking_name(error: ParsedError, package: str, use: str) -> Cause:
    """Return that an installed package lacks a name; `use` is what its user does with the name."""
    user = user_of(error, package) or "the job"
    other = f", or another {user}" if re.fullmatch(r"\w+", user) else ""
    return Cause(
        "packages do not fit",
        f"{_short(user)} {use}, which the installed {package} does not have",
        f"Install the {package} that it was written for (`pip check`, the framework's "
        f"requirements){other}",
    )


def module_of_another_version(error: ParsedError) -> Cause | None:
    """A package is installed, and lacks a module: Python names the whole path only then."""
    found = _MODULE.search(error.message)
    if error.name != "ModuleNotFoundError" or found is None:
        return None
    name = found["name"]
    package = name.partition(".")[0]
    importers = [frame for frame in error.frames if not frame.file.startswith("<")]
    importer = package_of(importers[-1].file) if importers else ""
    if importer == package or "._C" in name:
        return None  # the installation itself is incomplete
    if package not in _PUBLIC and (not importer or package in _FOLDERS):
        return None  # it may be a folder of the job
    if package == _MEGATRON:
        return _missing_part(error, name)
    cause = lacking_name(error, package, f"imports {name}")
    hidden = f"; or a folder {package} of the job hides the package: rename it"
    return Cause(cause.name, cause.sentence, cause.remedy + hidden)


def _missing_part(error: ParsedError, name: str) -> Cause:
    """Megatron is of several packages and of sources: having one of them, the others may lack."""
    user = user_of(error, _MEGATRON) or "the job"
    return Cause(
        "packages do not fit",
        f"{user} imports {name}, which the Megatron that is found here does not have",
        "Name the sources of Megatron-LM in PYTHONPATH, or install the package that has it "
        "(megatron-core has megatron.core alone), in the version that fits",
    )


def argument_of_another_version(error: ParsedError) -> Cause | None:
    """A call has other arguments than what it calls takes: who calls shows whose fault it is."""
    found = _ARGUMENT.match(error.message)
    if error.name != "TypeError" or found is None or not error.frames:
        return None

    # Did a setting become the argument? Another row explains those.
    near = [frame.function for frame in error.frames[-6:]]
    if any(function in _FROM_SETTINGS for function in near):
        return None

    # Is it an exception that another process cannot rebuild? Then what raised it counts.
    is_rebuilt = error.is_in(*_REBUILDS) or any(function in _REBUILDING for function in near)
    if is_rebuilt or _ERROR_CLASS.search(found["owner"] or ""):
        return None
    called = _called(found)
    what = _difference(found)
    if near[-1] in _BY_TARGET:
        return Cause(
            "argument of another version",
            f"a configuration calls {called} {what}",
            "Remove or correct that key; a configuration saved with a checkpoint may be of another "
            "version than the installed one",
        )

    # Does a package call, or the job's own code? The latter may be the job's own fault.
    frame = error.frames[-1]
    user = package_of(frame.file) or framework_of(frame.file)
    if user and (found["owner"] or called == "__init__"):
        return Cause(
            "argument of another version",
            f"{user} calls {called} {what}",
            "Versions of packages do not fit (`pip check`, the framework's requirements), or a "
            "setting leads to it; a class of the job is to take it (`**kwargs`)",
        )
    if user:
        return Cause(
            "argument of a function",
            f"{user} calls the function {called} {what}",
            "Is it a function of the job, such as a reward's? Then let it take these arguments "
            "(`**kwargs`); else the versions of packages do not fit (`pip check`)",
        )
    if not called.endswith(("Config", "Args", "Arguments", "Trainer", "Params", "LLM")):
        return None
    return Cause(
        "argument of another version",
        f"{frame.file}:{frame.line} calls {called} {what}",
        "Look for its new name, or install the version that the script was written for",
    )


def attribute_of_another_version(error: ParsedError) -> Cause | None:
    """A package uses an attribute that another package's class does not have."""
    found = _ATTRIBUTE.match(error.message)
    if error.name != "AttributeError" or found is None or not error.frames:
        return None
    owner = _CLASSES.fullmatch(found["owner"])
    if owner is None or owner.lastgroup is None:
        return None
    package = owner.lastgroup

    # A class with a `__getattr__` of its own raises the error there: its caller is the user.
    frames = [frame for frame in error.frames if not _is_lookup(frame, package)]
    file = frames[-1].file if frames else ""
    user = package_of(file) or framework_of(file)
    if user in {"", package, "torch"}:  # torch looks an attribute up for another one
        return None
    return lacking_name(error, package, f"uses {found['name']} of {found['owner']}")


def _is_lookup(frame: TracebackFrame, package: str) -> bool:
    """Return whether a frame only looks an attribute up, for who called it."""
    return frame.function == "__getattr__" and package_of(frame.file) == package


def _difference(found: re.Match[str]) -> str:
    """Return how the arguments differ from those that are taken."""
    if found["name"]:
        return f"with the argument {found['name']}, which it does not take"
    if found["lacks"]:
        return f"without the argument {found['lacks'][1:-1]}, which it needs"
    return f"with another number of arguments ({found['count']})"


def _called(found: re.Match[str]) -> str:
    owner = found["owner"] or ""
    if found["function"] == "__init__" and owner:
        return owner.rpartition(".")[2]
    return found["function"]
