"""What Ray is told as the job's runtime_env: read, and judged before anything is started."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.errors import Problem, SettingsError
from agent.base.words import mib
from agent.settings.redact import secrets_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.node.upload import Upload
    from agent.settings import Settings

_ENV, _DIR = "AGENT_RUNTIME_ENV", "AGENT_WORKING_DIR"
_REFERENCE = re.compile(r"\$\{?\w+\}?")
"""A value that Ray fills in on each node from that node's own environment."""
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_ELSEWHERE = (
    "it in the environment of every node (or in a file that {name}_FILE or the like names): actors "
    "inherit that; Ray's dashboard shows a runtime_env to whoever asks"
)


def read_runtime_env(
    settings: Settings, environ: Mapping[str, str], ray: str
) -> tuple[dict[str, object], Upload | None]:
    """Return the runtime_env from JSON, a file, and the working dir, and what that would send.

    `ray` is Ray's own folder.
    """
    found: dict[str, object] = {}
    problems: list[Problem] = []
    try:
        found = {} if settings.runtime_env is None else _parse(settings.runtime_env)
    except SettingsError as error:  # told beside what is wrong with the working dir
        problems += error.problems
    problems += [*_secrets(found), *_env_vars(found)]
    variable = _ENV
    if settings.working_dir is not None:
        if "working_dir" in found:
            both = f"{_DIR} + {_ENV}"
            problems.append(Problem(both, "a working_dir in each", "one of the two"))
        variable, found = _DIR, {**found, "working_dir": settings.working_dir}
    upload = _working_dir(variable, found, environ, ray)
    problems += [upload] if isinstance(upload, Problem) else []
    if isinstance(upload, Problem) or problems:
        raise SettingsError(tuple(problems))
    return found, upload


def _parse(text: str) -> dict[str, object]:
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not text"
            given = f"{text!r} ({why})"
            wanted = "JSON, or the path of a YAML or JSON file"
            raise SettingsError((Problem(_ENV, given, wanted),)) from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = _from_yaml(text)
    if not isinstance(value, dict):
        what = "something that is no mapping"
        raise SettingsError((Problem(_ENV, what, "names and values"),))
    try:
        json.dumps(value)  # so it travels to Ray
    except (TypeError, ValueError, RecursionError) as error:  # YAML has dates, sets and loops
        what = f"a value that JSON cannot carry ({error})"
        raise SettingsError((Problem(_ENV, what, "texts, numbers, lists and mappings"),)) from None
    return {str(key): item for key, item in value.items()}


def _from_yaml(text: str) -> object:
    import yaml  # noqa: PLC0415 - Ray brings it; most runs need none

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        what = f"text that is neither JSON nor YAML ({str(error).splitlines()[0]})"
        raise SettingsError((Problem(_ENV, what, "YAML or JSON"),)) from None


# --- what Ray's dashboard would show, and what Ray would refuse after the whole boot --------------


def _secrets(found: Mapping[str, object]) -> Iterator[Problem]:
    """Name what carries a secret, never the secret itself."""
    for place, name, text in _texts("", "", found):
        if secrets_in(name, text) and not _REFERENCE.fullmatch(text.strip()):
            expected = _ELSEWHERE.format(name=name or "its variable")
            yield Problem(_ENV, f"a secret in {place}", expected)


def _texts(place: str, name: str, value: object) -> Iterator[tuple[str, str, str]]:
    """Yield every text with where it stands and under which name."""
    if isinstance(value, str):
        yield place, name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(f"{place}.{key}".lstrip("."), str(key), inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(f"{place}[{index}]", "", inner)


def _env_vars(found: Mapping[str, object]) -> Iterator[Problem]:
    """Find values that are no text: YAML makes numbers and booleans of what is not quoted."""
    given = found.get("env_vars", {})
    if not isinstance(given, dict):
        yield Problem(_ENV, "env_vars that are no mapping", "names and quoted values")
        return
    for name, value in given.items():
        if not isinstance(value, str):
            quoted = f'{name}: "{json.dumps(value)}"' if value is not None else f'{name}: ""'
            yield Problem(_ENV, f"env_vars.{name}, which is no text", f"it quoted: {quoted}")


def _working_dir(
    variable: str, found: Mapping[str, object], environ: Mapping[str, str], ray: str
) -> Upload | Problem | None:
    """Judge a folder that would be sent to the cluster: is it there, and will Ray take it."""
    given = found.get("working_dir")
    if given is None or (isinstance(given, str) and _REMOTE.match(given)):
        return None
    folder = Path(str(given))
    if not folder.is_dir():
        if variable == _ENV and folder.is_file():  # Ray takes a zip, too
            return None
        return Problem(variable, f"{str(given)!r}, which is no folder here", "a folder to upload")
    listed = found.get("excludes")
    excludes = [str(line) for line in listed] if isinstance(listed, list) else []
    from agent.node.upload import LIMIT, measure  # noqa: PLC0415 - most runs upload nothing

    upload = measure(folder.absolute(), excludes, ray, environ)
    if upload is not None and upload.size > LIMIT:
        return Problem(variable, _told(str(given), upload), _remedy(LIMIT))
    return upload


def _told(given: str, upload: Upload) -> str:
    parts = ", ".join(f"{name} {mib(size)}" for name, size in upload.largest)
    least = "" if upload.complete else "at least "
    return f"{given!r}: {least}{mib(upload.size)} in {upload.files} files ({parts})"


def _remedy(limit: int) -> str:
    return (
        f"at most {mib(limit)}, which is what Ray takes of a folder: leave the largest out by "
        ".gitignore or by excludes in AGENT_RUNTIME_ENV, or have the code in the image or on a "
        "disk of all nodes, and start the agent in it"
    )
