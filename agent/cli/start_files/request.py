"""What a start file is made from: request, usual settings of recipes, text helpers."""

from __future__ import annotations

import json
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.frameworks import recipe_of
from agent.settings.jobs import RECIPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.frameworks.framework import Preset

WIDTH = 96


class Request(Value, frozen=True):
    """What a start file is wanted for."""

    recipe: str
    nodes: int
    gpus: int
    variant: str = ""  # The container of Slurm, or the kind of Kubernetes and RunPod
    image: str = ""  # Another image than the recipe's usual one
    agent: str = ""  # Path of the one file; '' is the platform's usual place
    url: str = ""
    sha256: str = ""  # Where a node fetches the one file instead, and its digest
    volume: str = ""  # Id of a network volume of RunPod

    @property
    def preset(self) -> Preset:
        """Return the usual settings of the recipe."""
        return presets()[self.recipe]

    @property
    def container_image(self) -> str:
        """Return the image to run in."""
        return self.image or self.preset.image


class StartFile(Value, frozen=True):
    """A file to write, and what to do next."""

    name: str
    text: str
    next_steps: tuple[str, ...]
    is_program: bool = False


@cache
def presets() -> dict[str, Preset]:
    """Return the usual settings of each recipe, in the order of `pod-agent recipes`."""
    return {known.name: recipe_of(known).PRESETS[known.name] for known in RECIPES}


class Folders(Value, frozen=True):
    """Where things are on a platform."""

    data: str
    code: str
    checkpoints: str
    logs: str = ""
    models: str = ""
    is_shared: bool = True  # Whether every node sees the same `data`


def setup_commands(request: Request, folders: Folders) -> list[str]:
    """Return the shell commands that must have run in the container before the agent starts."""
    commands = [*request.preset.install]
    if request.preset.checkout is not None:
        commands.insert(0, request.preset.checkout.command(folders.code))
    return commands


def run_commands(request: Request, target: str = "") -> list[str]:
    """Return the shell commands that enter the job's folder and fetch the one file to `target`."""
    commands = []
    if request.preset.code:
        commands.append(f"cd {request.preset.code}")
    if target and request.url:
        check = f"echo '{request.sha256}  {target}' | sha256sum --check --quiet"
        commands.append(f"curl -fsSLo {target} {request.url} && {check}")
    return commands


def job_variables(request: Request, folders: Folders, *, restarted: bool) -> dict[str, str]:
    """Return the variables of the job; `restarted`: the platform starts a lost node again."""
    preset = request.preset
    recipe = request.recipe
    if recipe == "rehearsal":
        return {"AGENT_LOG_DIR": folders.logs} if folders.logs else {}

    known = {"data": folders.data, "code": folders.code}
    code = ""
    if preset.checkout is not None:
        code = f"{folders.code}/{preset.checkout.folder}"
    prepare = "AGENT_PREPARE" if folders.is_shared else "AGENT_PREPARE_EACH"
    variables = {
        "AGENT_JOB": recipe,
        "AGENT_MODEL": preset.model,
        "AGENT_TRAIN_DATA": preset.train.format_map(known),
        "AGENT_EVAL_DATA": preset.evaluate.format_map(known),
        "AGENT_CHECKPOINTS": f"{folders.checkpoints}/{recipe}",
        "AGENT_JOB_ARGS": " ".join(preset.args),
        "AGENT_JOB_RETRIES": "3" if restarted and preset.resumes else "",
        "AGENT_REWARD": preset.reward.format_map(known),
        prepare: preset.prepare.format_map(known),
        "AGENT_LOG_DIR": folders.logs,
        "PYTHONPATH": code,
        "HF_HOME": folders.models,
    }
    return {name: text for name, text in variables.items() if text}


# --- text --------------------------------------------------------------------------------------

_TEMPLATES = Path(__file__).parent / "templates"
_CONDITION = re.compile(r"^\{\{if (\w+)\}\}\n(.*?)^\{\{end\}\}\n", re.MULTILINE | re.DOTALL)
_VALUE = re.compile(r"^( *)\{\{(\w+)\}\}\n|\{\{(\w+)\}\}", re.MULTILINE)
_WRAPPED = re.compile(r"(?:^ *#~.*\n)+", re.MULTILINE)


def fill(template: str, request: Request, **values: object) -> str:
    """Return a template with the values of the request and these.

    A value alone on its line gets that line's indentation, and leaves no line if it is empty. The
    lines from `{{if NAME}}` to `{{end}}` stay if that value is not empty. Comments after `#~` are
    wrapped.
    """
    recipe = request.recipe
    nodes = request.nodes
    gpus = request.gpus
    values = {
        "recipe": recipe,
        "nodes": nodes,
        "workers": nodes - 1,
        "gpus": gpus,
        "image": request.container_image,
        "url": request.url,
        "sha256": request.sha256,
        "about": request.preset.about,
        "recipe_line": f"pod-agent recipe {recipe} --nodes {nodes} --gpus {gpus}",
        **values,
    }

    def section(match: re.Match[str]) -> str:
        name, lines = match.groups()
        return lines if values[name] else ""

    def value(match: re.Match[str]) -> str:
        indentation, alone_on_line, within_line = match.groups()
        if within_line:
            return str(values[within_line])
        text = str(values[alone_on_line]).rstrip("\n")
        return textwrap.indent(text, indentation) + "\n" if text else ""

    def wrapped(match: re.Match[str]) -> str:
        before, _, rest = match[0].partition("#~")
        lines = [line.strip() for line in rest.split("#~")]
        paragraphs = "\n".join(lines).split("\n\n")
        return textwrap.indent(comment(*paragraphs), before) + "\n"

    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    text = _CONDITION.sub(section, text)
    return _WRAPPED.sub(wrapped, _VALUE.sub(value, text))


def comment(*paragraphs: str) -> str:
    """Return paragraphs as lines of comments."""
    return "\n#\n".join(
        "\n".join(f"# {line}" for line in _lines(text, WIDTH - 2)) for text in paragraphs
    )


def _lines(text: str, width: int) -> list[str]:
    """Wrap a text between its words only."""
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


_PLAIN = re.compile(r"[A-Za-z/][\w./@-]*")
_READ_AS_OTHERS = {"true", "false", "yes", "no", "on", "off", "null"}


def yaml_value(text: str, indent: int) -> str:
    """Return a string as a value of YAML; a long one is folded over several lines."""
    if len(text) > WIDTH - 30 and " " in text and "  " not in text:
        return "\n  ".join([">-", *_lines(text, WIDTH - indent - 2)])
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _READ_AS_OTHERS
    return text if is_plain else json.dumps(text)


def yaml_mapping(values: Mapping[str, str], indent: int) -> str:
    """Return variables as lines of a mapping, which are folded for this indentation."""
    return "\n".join(f"{name}: {yaml_value(text, indent)}" for name, text in values.items())


def yaml_env(values: Mapping[str, str], indent: int) -> str:
    """Return variables as a container's list of name and value, folded for this indentation."""
    return "\n".join(
        f"- name: {name}\n" + textwrap.indent(f"value: {yaml_value(text, indent + 2)}", "  ")
        for name, text in values.items()
    )


def shell_exports(values: Mapping[str, str]) -> str:
    """Return variables as `export` lines; `$HOME` and the like in them are expanded."""
    lines = []
    for name, text in values.items():
        quoted = " \\\n  ".join(_lines(text, WIDTH - 12 - len(name)))
        needs_quotes = re.search(r"[^\w$./@:=-]", text) is not None
        if needs_quotes:
            quoted = f'"{quoted}"'
        lines.append(f"export {name}={quoted}")
    return "\n".join(lines)
