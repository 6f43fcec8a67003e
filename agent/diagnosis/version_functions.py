"""Rows about versions and arguments that need more than words: who calls what decides."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError

_PACKAGES = ("/site-packages/", "/dist-packages/")
_ARGUMENT = re.compile(
    r"(?:(?P<owner>[\w.]{1,80})\.)?(?P<function>\w{1,60})\(\) got an unexpected keyword argument "
    r"'(?P<name>\w{1,60})'"
)
_MODULE = re.compile(r"No module named '(?P<name>[A-Za-z_]\w{0,60}(?:\.\w{1,60}){1,6})'\s*$")
_PUBLIC = frozenset(
    (
        "accelerate",
        "datasets",
        "deepspeed",
        "flash_attn",
        "huggingface_hub",
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
        "triton",
        "trl",
        "unsloth",
        "vllm",
        "xformers",
    )
)
"""Packages whose modules move between releases; others may be folders of the job."""
_FROM_SETTINGS = ("omega_conf_to_dataclass", "instantiate", "parse_args_into_dataclasses")


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


def lacking_name(error: ParsedError, package: str, use: str) -> Cause:
    """Return that an installed package lacks a name; `use` is what its user does with the name."""
    user = user_of(error, package) or "the job"
    return Cause(
        "packages do not fit",
        f"{user} {use}, which the installed {package} does not have",
        f"Install the version of {package} that {user} was written for (`pip check`, and the "
        "requirements of the framework)",
    )


def module_of_another_version(error: ParsedError) -> Cause | None:
    """A package is installed, and lacks a module: Python names the whole path only then."""
    found = _MODULE.search(error.message)
    if error.name != "ModuleNotFoundError" or found is None:
        return None
    name = found["name"]
    package = name.partition(".")[0]
    if package not in _PUBLIC or "._C" in name:
        return None
    importers = [frame for frame in error.frames if not frame.file.startswith("<")]
    if importers and package_of(importers[-1].file) == package:
        return None  # the installation itself is incomplete
    return lacking_name(error, package, f"imports {name}")


def argument_of_another_version(error: ParsedError) -> Cause | None:
    """A call passes an argument that the installed version of what it calls does not take."""
    found = _ARGUMENT.match(error.message)
    if error.name != "TypeError" or found is None or not error.frames:
        return None

    # Did a setting become the argument? Another row explains those.
    near = error.frames[-6:]
    if any(frame.function in _FROM_SETTINGS for frame in near):
        return None

    # Who calls? A function of the job's own code may be the job's own fault.
    called = _called(found)
    if not found["owner"] and called != "__init__":
        return None  # a function may be the job's: of a reward, a tool, a callback
    user = package_of(error.frames[-1].file)
    if user:
        return Cause(
            "argument of another version",
            f"{user} calls {called} with the argument {found['name']}, which it does not take",
            "The versions of packages do not fit: install those that the framework asks for "
            "(`pip check`), or remove the setting that leads to this argument",
        )
    if not called.endswith(("Config", "Args", "Arguments", "Trainer", "Params", "LLM")):
        return None
    frame = error.frames[-1]
    return Cause(
        "argument of another version",
        f"{frame.file}:{frame.line} gives {called} the argument {found['name']}, which the "
        "installed version does not take",
        "Look for its new name, or install the version that the script was written for",
    )


def _called(found: re.Match[str]) -> str:
    owner = found["owner"] or ""
    if found["function"] == "__init__" and owner:
        return owner.rpartition(".")[2]
    return found["function"]
