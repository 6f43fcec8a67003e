"""Read the environment into Settings, and print the table of variables."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from agent.base.errors import Problem, SettingsError
from agent.base.text import Line, escaped, first_names, nearly_equal
from agent.base.value import Value
from agent.settings import model, values
from agent.settings.model import Settings
from agent.settings.rules import contradictions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_MAY_BE_EMPTY = {"AGENT_JOB_ARGS", "WANDB_API_KEY", "RUNPOD_API_KEY"}
_PREFIX = "AGENT_"
_OURS = {"RAY_WORKER", "HEAD_POD_ID", "EXPECTED_WORKERS", "DEBUG_RAY"}
"""Names without the prefix that no other tool has: a near miss is ours, too."""
_DURATIONS = {values.duration, values.duration_or_off, values.duration_or_auto}


class Origin(Value):
    """Where the value of a variable is from; by default the environment."""

    file_variable: str = ""  # The one that names a file with it
    is_default: bool = False
    ignored: str = ""  # Why a default counts, and not what is in the environment

    @property
    def text(self) -> str:
        """Return it as `env` prints it."""
        if self.is_default:
            return f"default ({self.ignored})" if self.ignored else "default"
        return f"file named by {self.file_variable}" if self.file_variable else "environment"


class VariableRow(Value):
    """A variable as `env` lists it."""

    group: str
    name: str
    value: str  # '' for a default
    origin: Origin
    meaning: str
    default: str

    def to_json(self) -> dict[str, str]:
        """Return it as `env --json` prints it."""
        return {**to_builtins(self), "origin": self.origin.text}


class Loaded(Value):
    """Settings, the origin of each value, and warnings about variables."""

    settings: Settings
    command: tuple[str, ...] | None  # the job given after `--`, as argv
    origins: Mapping[str, Origin]  # by variable
    notes: tuple[str, ...] = ()  # a sentence for each variable that may be meant otherwise
    misspelled: tuple[str, ...] = ()  # one for each misspelled name, and one for unknown names


def load(environ: Mapping[str, str], command: Sequence[str] | None = None) -> Loaded:
    """Return validated settings; raise one SettingsError with every problem."""
    loaded, problems = read_settings(environ, command)
    if problems:
        raise SettingsError(problems, loaded.misspelled)
    return loaded


def read_settings(
    environ: Mapping[str, str], command: Sequence[str] | None = None
) -> tuple[Loaded, tuple[Problem, ...]]:
    """Return the settings, with the default in place of each value that is wrong; and why it is."""
    problems: list[Problem] = []

    # Which text has each variable, and from where?
    texts, origins = _collect(environ, problems)
    misspelled = _unknown_names(environ, problems)
    notes = (*_drop_service_links(texts, origins), *_bare_numbers(texts))

    # Each value alone; a wrong one is left out, and so gets its default.
    fields: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            fields[model.FIELD_OF[name]] = _read_value(name, text)
        except ValueError as error:  # noqa: PERF203 - one bad value does not hide the next
            hidden = "a wrong value (not shown, as a secret)"
            got = hidden if name in model.SECRETS else repr(text)
            problems.append(Problem(name, got, str(error)))
    settings = Settings(**fields)

    # All values together; what contradicts a wrong value is no problem of its own.
    argv = None if command is None else tuple(command)
    wrong = {problem.variable for problem in problems}
    problems += [problem for problem in contradictions(settings, argv) if not wrong & problem.names]
    return Loaded(settings, argv, origins, notes, misspelled), tuple(problems)


def _read_value(name: str, text: str) -> object:
    """Return the value of a variable; raises ValueError with what it expects."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("text in UTF-8") from None
    return model.VARIABLES[name].read(text)


def _drop_service_links(texts: dict[str, str], origins: dict[str, Origin]) -> tuple[str, ...]:
    """Drop what Kubernetes sets for a service named like our variable; return sentences on it."""
    links = [
        name for name, text in texts.items() if name.endswith("_PORT") and text.startswith("tcp://")
    ]
    ignored = []
    for name in links:
        ignored.append(f"{name}={texts.pop(name)} is a Kubernetes service link and is ignored")
        why = "a Kubernetes service link was ignored"
        origins[name] = Origin(is_default=True, ignored=why)
    return tuple(ignored)


def _bare_numbers(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each duration without a unit: minutes may be meant."""
    for name, text in texts.items():
        number = text.strip()
        if model.VARIABLES[name].read in _DURATIONS and number.isdecimal() and number != "0":
            yield f"{name}={number} is read as {number} seconds ({number}m: minutes)"


def settings_for_end(environ: Mapping[str, str]) -> Settings:
    """Return the settings that say how a node ends, without those that are wrong."""
    keys = {*model.SET_BY_PLATFORM}
    of_the_end = {
        *("AGENT_LOG", "AGENT_LOG_DIR", "AGENT_ON_DONE", "AGENT_PRICE_PER_HOUR"),
        *("AGENT_RUNPOD_API", *keys, *(f"{name}_FILE" for name in keys)),
    }
    given = {name: text for name, text in environ.items() if name in of_the_end}
    try:
        return load(given).settings
    except SettingsError as error:
        wrong = {problem.variable for problem in error.problems}
        if wrong & keys:  # without a key the pod cannot be stopped: it is held
            wrong.add("AGENT_ON_DONE")
        rest = {name: text for name, text in given.items() if name not in wrong}
        if len(rest) < len(given):
            return settings_for_end(rest)
        return Settings()


def _collect(
    environ: Mapping[str, str], problems: list[Problem]
) -> tuple[dict[str, str], dict[str, Origin]]:
    """Return the text of each variable that is set, and the origin of each."""
    texts = {name: environ[name] for name in model.FIELD_OF if name in environ}
    origins = dict.fromkeys(texts, Origin())
    for name in [n for n, text in texts.items() if not text.strip() and n in _MAY_BE_EMPTY]:
        texts.pop(name)
        origins[name] = Origin(is_default=True, ignored="empty in the environment")

    # Secrets that are in a file.
    for form, secret in model.SECRET_FILE_VARIABLES.items():
        if form not in environ:
            continue
        is_by_platform = secret in model.SET_BY_PLATFORM and secret in environ
        if secret in texts and not is_by_platform:
            both = f"{secret} + {form}"
            problems.append(Problem(both, "several forms of one secret", "only one"))
            continue
        origins[secret] = Origin(file_variable=form)
        try:
            with Path(environ[form]).open(encoding="utf-8-sig") as file:  # editors leave a mark
                texts[secret] = file.read(65_536).strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not text"
            expected = f"a readable file that holds {secret}"
            problems.append(Problem(form, f"{environ[form]} ({why})", expected))

    # Empty secrets, in the environment or in a file.
    for secret in [name for name in model.SECRETS if not texts.get(name, "x").strip()]:
        name = secret if secret in environ else origins[secret].file_variable
        problems.append(Problem(name, "nothing", "a secret; unset it to go without"))
        texts.pop(secret)
    return texts, origins


def _unknown_names(environ: Mapping[str, str], problems: list[Problem]) -> tuple[str, ...]:
    """Add a problem for each misspelled name; return sentences on other unknowns."""
    without_prefix = [name for name in model.KNOWN_NAMES if not name.startswith(_PREFIX)]
    foreign = []
    misspelled = []
    for name in sorted(environ.keys() - {*model.KNOWN_NAMES, *model.FOREIGN_NAMES}):
        # Which of ours is meant? Other tools may use a name without the prefix, in any case.
        is_prefixed = name.startswith(_PREFIX)
        if is_prefixed:
            meant = _near(name, model.KNOWN_NAMES)
        elif name.upper() in model.KNOWN_NAMES:
            meant = name.upper()
        else:
            meant = _near(name.upper(), without_prefix)

        if name in model.SET_FOR_JOBS:
            misspelled.append(
                f"{name} is set by the agent in the job's environment; your value is ignored"
            )
        elif meant is not None and (is_prefixed or (meant in _OURS and meant not in environ)):
            problems.append(Problem(name, "an unknown name", f"{meant} (did you mean that?)"))
        elif is_prefixed:
            related = get_close_matches(name, model.VARIABLES, 1, 0.78)  # AGENT_ID has less
            hint = f" (did you mean {related[0]}?)" if related else ""
            foreign.append(f"{escaped(name)}{hint}")
        elif meant is not None and meant not in environ:
            misspelled.append(f"{name} is no known variable (did you mean {meant}?)")
    if foreign:
        misspelled.insert(0, f"unknown and ignored: {first_names(foreign, 8)}")
    return tuple(misspelled)


def _near(name: str, known: Iterable[str]) -> str | None:
    return next((candidate for candidate in known if nearly_equal(name, candidate)), None)


def env_rows(loaded: Loaded, environ: Mapping[str, str]) -> Iterator[VariableRow]:
    """Yield the rows of `pod-agent env` by group: each variable, its value, origin and meaning."""
    group = ""
    for name, variable in model.VARIABLES.items():
        group = model.GROUPS.get(name, group)
        origin = loaded.origins.get(name, Origin(is_default=True))
        value = ""
        if not origin.is_default:
            value = "********" if name in model.SECRETS else environ.get(name, "")
        yield VariableRow(group, name, value, origin, variable.meaning, variable.default_text)


def env_lines(rows: Iterable[VariableRow], *, has_all: bool) -> Iterator[Line]:
    """Yield a line for each variable that is set; then the others, below their groups' headings."""
    # What is set?
    unset = []
    for row in rows:
        if row.origin.is_default:
            unset.append(row)
        else:
            yield Line(f"{row.name}={row.value}", f"  [{row.origin.text}]", "good")
    if not has_all:
        number = f"{len(unset)} variables have their defaults"
        yield Line("", f"{number}: --all lists them, and what each is for")
        return

    # The rest, each with its default and what it is for.
    group = ""
    for row in unset:
        if row.group != group:
            group = row.group
            yield Line(f"{group}:", tone="title")
        default = f"default: {row.default or 'none'}"
        if row.origin.ignored:
            default = f"{row.origin.text}, {row.default or 'none'}"
        yield Line(row.name, f"  {row.meaning} ({default})")
