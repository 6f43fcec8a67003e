"""Reads the files that settings name: services, runtime_env, and the folder to upload."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.base.errors import Problem
from agent.base.text import first_names, mib
from agent.job.services import NO_FILE
from agent.job.services_file import parse
from agent.settings.redact import secrets_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.job.services import ServicesFile
    from agent.node.facts import UploadSize
    from agent.settings.model import Settings

_ENV = "AGENT_RUNTIME_ENV"
_DIR = "AGENT_WORKING_DIR"
_REFERENCE = re.compile(r"\$\{?\w+\}?")
"""A value that Ray fills in on each node from that node's environment."""
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_LEAVE_OUT = (
    "a folder without them, since all nodes and Ray's dashboard can read an upload: leave them out "
    "by .gitignore or excludes in AGENT_RUNTIME_ENV, or insist by AGENT_ALLOW_INSECURE=1"
)
_SHRINK = (
    "which is Ray's limit: leave the largest out by .gitignore or excludes in AGENT_RUNTIME_ENV, "
    "or start the agent in the code, in the image or on a disk of all nodes"
)
_NODE_ENVIRONMENT = (
    "it in the environment of every node (or in a file that {name}_FILE or the like names), which "
    "actors inherit; Ray's dashboard shows a runtime_env to whoever asks"
)


def read_services(
    settings: Settings, brought: Mapping[str, Any], problems: list[Problem]
) -> ServicesFile:
    """Return the services and steps of the AGENT_SERVICES file, and those that a recipe brings.

    Its errors are added to `problems`.
    """
    if settings.services is None and not brought:
        return NO_FILE
    text: str | None = ""
    if settings.services is not None:
        wanted = "the path of a TOML file, there on every node"
        text = _read_text("AGENT_SERVICES", settings.services, wanted, problems)
    if text is None:
        return NO_FILE
    file, errors = parse(text, settings.services or "", settings, {**brought})
    problems += errors
    return NO_FILE if errors else file


def _read_text(variable: str, path: str, expected: str, problems: list[Problem]) -> str | None:
    """Return the text of a variable's file; None if it cannot be read, which is a problem."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        problems.append(Problem(variable, f"{path!r} ({why})", expected))
        return None


def read_runtime_env(
    settings: Settings, environ: Mapping[str, str], ray: str, problems: list[Problem]
) -> tuple[dict[str, object], UploadSize | None]:
    """Return the runtime_env with the working dir, and its upload's size; `ray` is Ray's folder."""
    runtime_env: dict[str, object] = {}
    if settings.runtime_env is not None:
        runtime_env = _parse(settings.runtime_env, problems)
    problems += _faults(runtime_env)

    # Which variable names the working dir? The other one must not.
    variable = _ENV
    if settings.working_dir is not None:
        if "working_dir" in runtime_env:
            both = f"{_DIR} + {_ENV}"
            problems.append(Problem(both, "a working_dir in each", "one of the two"))
        variable = _DIR
        runtime_env = {**runtime_env, "working_dir": settings.working_dir}

    # Is it a folder of this machine? Ray uploads only that, or a zip file.
    given = runtime_env.get("working_dir")
    if given is None or (isinstance(given, str) and _REMOTE.match(given)):
        return runtime_env, None
    folder = Path(str(given))
    if not folder.is_dir():
        may_be_zip = variable == _ENV
        if not (may_be_zip and folder.is_file()):
            what = f"{str(given)!r}, which is no folder here"
            problems.append(Problem(variable, what, "a folder to upload"))
        return runtime_env, None

    from agent.node.upload import LIMIT, measure  # noqa: PLC0415 - 4 ms, and most runs upload nothing

    patterns = runtime_env.get("excludes")
    excludes = [str(pattern) for pattern in patterns] if isinstance(patterns, list) else []
    upload = measure(folder.absolute(), excludes, ray, environ)
    if upload is not None:
        problems += _upload_problems(settings, upload, LIMIT, variable, repr(str(given)))
    return runtime_env, upload


def _upload_problems(
    settings: Settings, upload: UploadSize, limit: int, variable: str, folder: str
) -> Iterator[Problem]:
    """Yield a problem for an upload with credentials, else for one that is too large."""
    if upload.credentials and not settings.allow_insecure:
        what = f"{folder} with credentials in it: {first_names(upload.credentials)}"
        yield Problem(variable, what, _LEAVE_OUT)
    elif upload.size > limit:
        parts = ", ".join(f"{name} {mib(size)}" for name, size in upload.largest)
        what = f"{folder}: {mib(upload.size)} in {upload.files} files ({parts})"
        yield Problem(variable, what, f"at most {mib(limit)}, {_SHRINK}")


def _parse(given: str, problems: list[Problem]) -> dict[str, object]:
    """Return the runtime_env from JSON, or from a YAML or JSON file."""
    import yaml  # noqa: PLC0415 - Ray brings it; most runs need none

    text: str | None = given
    if not given.lstrip().startswith("{"):
        text = _read_text(_ENV, given, "JSON, or the path of a YAML or JSON file", problems)
    if text is None:
        return {}
    try:
        is_json = text.lstrip().startswith("{")
        value = json.loads(text) if is_json else yaml.safe_load(text)
        json.dumps(value)  # so it travels to Ray: YAML has dates, sets and loops
        return {str(key): item for key, item in value.items()}
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        what = f"no mapping that JSON can carry ({str(error).splitlines()[0]})"
        problems.append(Problem(_ENV, what, "names with texts, numbers, lists and mappings"))
        return {}


def _faults(runtime_env: Mapping[str, object]) -> Iterator[Problem]:
    """Report secrets, and variables that are no text: YAML reads unquoted numbers and booleans.

    A secret is named by its place, never by its value: Ray's dashboard shows a runtime_env.
    """
    for place, name, text in _texts("", "", runtime_env):
        if secrets_in(name, text) and not _REFERENCE.fullmatch(text.strip()):
            expected = _NODE_ENVIRONMENT.format(name=name or "its variable")
            yield Problem(_ENV, f"a secret in {place}", expected)

    variables = runtime_env.get("env_vars", {})
    if not isinstance(variables, dict):
        yield Problem(_ENV, "env_vars that are no mapping", "names and quoted values")
        return
    wrong = [f"env_vars.{name}" for name, text in variables.items() if not isinstance(text, str)]
    if wrong:
        yield Problem(_ENV, f"{first_names(wrong)}, which is no text", "a value in quotes")


def _texts(place: str, name: str, value: object) -> Iterator[tuple[str, str, str]]:
    """Yield every text within a value, with its place and the name that it has there."""
    if isinstance(value, str):
        yield place, name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(f"{place}.{key}".lstrip("."), str(key), inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(f"{place}[{index}]", "", inner)
