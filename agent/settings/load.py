"""From an environment to Settings: pure, but for the secret files that it is told to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.base.errors import Problem, SettingsError
from agent.base.value import dataclass
from agent.settings.model import (
    FIELD_OF,
    FORMS_OF_SECRETS,
    KNOWN,
    SECRETS,
    THEIRS,
    VARIABLES,
    Settings,
)
from agent.settings.rules import contradictions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MAY_BE_EMPTY = {"AGENT_JOB_ARGS", "WANDB_API_KEY"}
_LARGEST_SECRET_FILE = 65_536


@dataclass(frozen=True)
class Loaded:
    """Settings, where each came from, and what is worth a word about them."""

    settings: Settings
    command: tuple[str, ...] | None
    """The job given after `--`, as argv."""
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()
    slips: tuple[str, ...] = ()
    """Variables whose names are nearly ours, each in a sentence with the one that was meant."""


def read_secret_file(path: str) -> str:
    """Read a file that holds one secret."""
    with Path(path).open(encoding="utf-8-sig") as file:  # editors begin a file with a mark
        return file.read(_LARGEST_SECRET_FILE)


def load(
    environ: Mapping[str, str],
    command: Sequence[str] | None = None,
    read_file: Callable[[str], str] = read_secret_file,
) -> Loaded:
    """Validate everything together; raise one SettingsError with all that is wrong."""
    problems: list[Problem] = []
    notes: list[str] = []
    raw, origins = _collect(environ, read_file, problems)
    _check_names(environ, problems, notes)
    for name in [n for n, text in raw.items() if n.endswith("_PORT") and text.startswith("tcp://")]:
        notes.append(f"{name}={raw.pop(name)} is a Kubernetes service link and is ignored")
        origins[name] = "default (a Kubernetes service link was ignored)"
    settings = _validate(raw, problems)
    bad = {problem.variable for problem in problems}
    problems += [
        problem
        for problem in contradictions(settings, tuple(command) if command is not None else None)
        if not bad & set(problem.variable.split(" + "))
    ]
    slips = slips_of_the_hand(environ)
    if problems:
        raise SettingsError(tuple(problems), slips)
    words = tuple(command) if command is not None else None
    return Loaded(settings, words, origins, tuple(notes), slips)


def _collect(
    environ: Mapping[str, str], read_file: Callable[[str], str], problems: list[Problem]
) -> tuple[dict[str, str], dict[str, str]]:
    raw = {name: environ[name] for name in FIELD_OF if name in environ}
    origins = dict.fromkeys(raw, "environment")
    for name in [n for n, text in raw.items() if not text.strip() and n in _MAY_BE_EMPTY]:
        raw.pop(name)
        origins[name] = "default (empty in the environment)"
    for secret in SECRETS:
        forms = [f for f, of in FORMS_OF_SECRETS.items() if of == secret and f in environ]
        given = [secret] * (secret in raw) + forms
        if len(given) > 1:
            problems.append(Problem(" + ".join(given), "several forms of one secret", "only one"))
        elif forms:
            _read_into(raw, secret, forms[0], environ[forms[0]], read_file, problems)
            origins[secret] = f"file named by {forms[0]}"
        if secret in raw and not raw[secret].strip():
            problems.append(Problem(given[0], "nothing", "a secret; unset it to go without"))
            raw.pop(secret)
    return raw, origins


def _read_into(  # noqa: PLR0913 - the one place where a file becomes a value
    raw: dict[str, str],
    secret: str,
    form: str,
    path: str,
    read_file: Callable[[str], str],
    problems: list[Problem],
) -> None:
    try:
        raw[secret] = read_file(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        problems.append(Problem(form, f"{path} ({why})", f"a readable file that holds {secret}"))


def _check_names(environ: Mapping[str, str], problems: list[Problem], notes: list[str]) -> None:
    foreign = []
    for name in sorted(n for n in environ if n.startswith("AGENT_") and n not in KNOWN):
        meant = next((k for k in KNOWN if nearly_equal(name, k)), None)
        if meant is None:
            foreign.append(name)
        else:
            problems.append(Problem(name, "an unknown name", f"{meant} (did you mean that?)"))
    if foreign:
        notes.append(f"not ours and ignored: {', '.join(foreign)}")


def slips_of_the_hand(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Find near misses of our names that begin with no AGENT_: any tool may own such a name."""
    ours = [name for name in KNOWN if not name.startswith("AGENT_")]
    found = []
    for name in sorted(n for n in environ if not n.startswith("AGENT_") and n not in THEIRS):
        upper = name.upper()
        meant = next((k for k in ours if nearly_equal(upper, k) or _swapped(upper, k)), None)
        if meant is not None and not {name, meant} & ({*ours} & {*environ}):
            found.append(f"{name} is no variable of ours (did you mean {meant}?)")
    return tuple(found)


def _swapped(one: str, other: str) -> bool:
    """Say whether two neighbours changed places."""
    a, b = one.replace("_", ""), other.replace("_", "")
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    return len(a) == len(b) and a[at:] == b[at + 1 : at + 2] + b[at : at + 1] + b[at + 2 :]


def nearly_equal(one: str, other: str) -> bool:
    """Say whether two names differ by at most one edit, underscores ignored."""
    a, b = one.replace("_", ""), other.replace("_", "")
    if abs(len(a) - len(b)) > 1:
        return False
    short, long = sorted((a, b), key=len)
    at = next((i for i, letter in enumerate(short) if letter != long[i]), len(short))
    if len(short) == len(long):
        return short[at + 1 :] == long[at + 1 :]
    return short[at:] == long[at + 1 :]


def _validate(raw: Mapping[str, str], problems: list[Problem]) -> Settings:
    """Read text by text, so that one bad value does not hide the next."""
    fields: dict[str, Any] = {}
    for name, text in raw.items():
        problem = _read_text(name, text, fields)
        if problem is not None:
            problems.append(problem)
    return Settings(**fields)


def _read_text(name: str, text: str, into: dict[str, Any]) -> Problem | None:
    try:
        text.encode()
        into[FIELD_OF[name]] = VARIABLES[name].read(text)
    except UnicodeEncodeError:
        got = "a secret that is not text" if name in SECRETS else repr(text)
        return Problem(name, got, "text in UTF-8")
    except ValueError as error:
        got = "a secret that cannot be one" if name in SECRETS else repr(text)
        return Problem(name, got, str(error))
    return None
