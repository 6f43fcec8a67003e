"""Read the environment into Settings, and print the table of variables."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.base.errors import Problem, SettingsError
from agent.base.text import Line, escaped, first_names, nearly_equal
from agent.base.value import Value
from agent.settings import model
from agent.settings.model import Settings
from agent.settings.rules import contradictions
from agent.settings.values import LATER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.base.text import Tone


_MAY_BE_EMPTY = {"AGENT_JOB_ARGS", "WANDB_API_KEY", "RUNPOD_API_KEY"}
_PREFIX = "AGENT_"


class Loaded(Value):
    """Settings, the origin of each value, and warnings about variables."""

    settings: Settings
    command: tuple[str, ...] | None  # the job given after `--`, as argv
    origins: Mapping[str, str]  # by variable: `environment`, the file it was read from, `default`
    ignored: tuple[str, ...] = ()  # a sentence for each variable that is ignored
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
    raw, origins = _collect(environ, problems)
    misspelled = _unknown_names(environ, problems)
    ignored = []
    for name in [n for n, text in raw.items() if n.endswith("_PORT") and text.startswith("tcp://")]:
        ignored.append(f"{name}={raw.pop(name)} is a Kubernetes service link and is ignored")
        origins[name] = "default (a Kubernetes service link was ignored)"
    fields: dict[str, Any] = {}
    for name, text in raw.items():
        try:
            text.encode()
            fields[model.FIELD_OF[name]] = model.VARIABLES[name].read(text)
        except ValueError as error:  # noqa: PERF203 - one bad value does not hide the next
            is_text = not isinstance(error, UnicodeEncodeError)
            got = "a secret that cannot be one" if name in model.SECRETS else repr(text)
            problems.append(Problem(name, got, str(error) if is_text else "text in UTF-8"))
    settings = Settings(**fields)
    argv = None if command is None else tuple(command)
    bad = {problem.variable for problem in problems}
    problems += [one for one in contradictions(settings, argv) if not bad & one.names]
    return Loaded(settings, argv, origins, tuple(ignored), misspelled), tuple(problems)


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
        # Without a key the pod cannot be stopped: it is held.
        wrong |= {"AGENT_ON_DONE"} & given.keys() if wrong & keys else set()
        rest = {name: text for name, text in given.items() if name not in wrong}
        return settings_for_end(rest) if len(rest) < len(given) else Settings()


def _collect(
    environ: Mapping[str, str], problems: list[Problem]
) -> tuple[dict[str, str], dict[str, str]]:
    raw = {name: environ[name] for name in model.FIELD_OF if name in environ}
    origins = dict.fromkeys(raw, "environment")
    for name in [n for n, text in raw.items() if not text.strip() and n in _MAY_BE_EMPTY]:
        raw.pop(name)
        origins[name] = "default (empty in the environment)"
    for form, secret in model.SECRET_FILE_VARIABLES.items():
        if form not in environ:
            continue
        if secret in raw and not (secret in model.SET_BY_PLATFORM and secret in environ):
            both = f"{secret} + {form}"
            problems.append(Problem(both, "several forms of one secret", "only one"))
            continue
        origins[secret] = f"file named by {form}"
        try:
            with Path(environ[form]).open(encoding="utf-8-sig") as file:  # editors leave a mark
                raw[secret] = file.read(65_536).strip()
        except (OSError, UnicodeDecodeError) as error:
            got = f"{environ[form]} ({getattr(error, 'strerror', None) or 'not text'})"
            problems.append(Problem(form, got, f"a readable file that holds {secret}"))
    for secret in [name for name in model.SECRETS if not raw.get(name, "x").strip()]:
        name = secret if secret in environ else origins[secret].removeprefix("file named by ")
        problems.append(Problem(name, "nothing", "a secret; unset it to go without"))
        raw.pop(secret)
    return raw, origins


def _unknown_names(environ: Mapping[str, str], problems: list[Problem]) -> tuple[str, ...]:
    """Add a problem for each misspelled or reserved name; return sentences on other unknowns."""
    ours = [name for name in model.KNOWN_NAMES if not name.startswith(_PREFIX)]
    foreign = []
    misspelled = []
    for name in sorted(environ.keys() - {*model.KNOWN_NAMES, *model.FOREIGN_NAMES}):
        is_prefixed = name.startswith(_PREFIX)
        # other tools may use a name without the prefix, in any case
        near = partial(nearly_equal, name if is_prefixed else name.upper())
        meant = next(filter(near, model.KNOWN_NAMES if is_prefixed else ours), None)
        if name in model.RESERVED_NAMES:
            problems.append(Problem(name, f"a variable that is {LATER}", "it unset"))
        elif is_prefixed and meant is not None:
            problems.append(Problem(name, "an unknown name", f"{meant} (did you mean that?)"))
        elif is_prefixed:
            related = get_close_matches(name, model.VARIABLES, 1, 0.78)  # AGENT_ID has less
            hint = f" (did you mean {related[0]}?)" if related else ""
            foreign.append(f"{escaped(name)}{hint}")
        elif meant is not None and meant not in environ:
            misspelled.append(f"{name} is no known variable (did you mean {meant}?)")
    named = [f"unknown and ignored: {first_names(foreign, 8)}"] if foreign else []
    return (*named, *misspelled)


def env_rows(loaded: Loaded, environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the rows of `pod-agent env` by group: each variable, its value, origin and meaning."""
    group = ""
    for name, about in model.VARIABLES.items():
        group = model.GROUPS.get(name, group)
        origin = loaded.origins.get(name, "default")
        value = "********" if name in model.SECRETS else environ.get(name, "")
        yield {
            "group": group,
            "name": name,
            "value": "" if origin.startswith("default") else value,
            "origin": origin,
            "meaning": about.meaning,
            "default": about.default_text,
        }


def env_lines(rows: Iterable[Mapping[str, str]]) -> Iterator[Line]:
    """Yield two lines for each variable, below the heading of its group."""
    group = ""
    for row in rows:
        if row["group"] != group:
            group = row["group"]
            yield Line(f"{group}:", tone="title")
        now = f"{row['name']}={row['value']}" if row["value"] else row["name"]
        tone: Tone = "" if row["origin"].startswith("default") else "good"
        yield Line(now, f"  [{row['origin']}]", tone)
        yield Line("    ", f"{row['meaning']}; default: {row['default'] or 'none'}")
