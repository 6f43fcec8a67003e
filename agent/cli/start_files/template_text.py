"""Text of the start files: templates, and values as YAML and a shell write them."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.cli.start_files.request import Request

WIDTH = 96

_TEMPLATES = Path(__file__).parent / "templates"
_CONDITION = re.compile(r"\{\{if (\w+)\}\}")
_END = "{{end}}"
_VALUE = re.compile(r"^( *)\{\{(\w+)\}\}\n|\{\{(\w+)\}\}", re.MULTILINE)
_WRAPPED = re.compile(r"(?:^ *#~.*\n)+", re.MULTILINE)


def fill(template: str, request: Request, **values: object) -> str:
    """Return a template with the values of the request and these.

    A value alone on its line gets that line's indentation, and leaves no line if it is empty. The
    lines from `{{if NAME}}` to `{{end}}` stay if that value is not empty; they nest. Comments after
    `#~` are wrapped.
    """
    job = request.job
    recipe_line = f"pod-agent recipe {job} --nodes {request.nodes} --gpus {request.gpus}"
    if request.command:
        recipe_line = ""
    values = {
        "job": job,
        "nodes": request.nodes,
        "workers": request.nodes - 1,
        "gpus": request.gpus,
        "image": request.container_image,
        "about": request.preset.about,
        "why_agent": request.agent.why,
        "recipe_line": recipe_line,
        "has_wandb": request.has_wandb,
        "has_hf_token": request.has_hf_token,
        "is_spot": request.is_spot,
        "image_user": "" if request.image else request.preset.user,
        **values,
    }

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
    return _WRAPPED.sub(wrapped, _VALUE.sub(value, _kept(text, values)))


def _kept(template: str, values: Mapping[str, object]) -> str:
    """Return the lines whose conditions all hold."""
    kept = []
    conditions: list[bool] = []
    for line in template.splitlines(keepends=True):
        condition = _CONDITION.fullmatch(line.strip())
        if condition:
            conditions.append(bool(values[condition[1]]))
        elif line.strip() == _END:
            conditions.pop()
        elif all(conditions):
            kept.append(line)
    return "".join(kept)


def comment(*paragraphs: str) -> str:
    """Return paragraphs as lines of comments."""
    return "\n#\n".join(
        "\n".join(f"# {line}" for line in _lines(text, WIDTH - 2)) for text in paragraphs
    )


def _lines(text: str, width: int) -> list[str]:
    """Wrap a text between its words only."""
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


_PLAIN = re.compile(r"[A-Za-z/][\w./@-]*|.* .*")


class _Dumper(yaml.SafeDumper):
    """Writes texts so that every parser and every editor reads them as texts."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # A newer YAML than this library's reads 1e-6 as a number: what is no plain word is quoted.
    style = None if _PLAIN.fullmatch(text) else '"'
    if len(text) > WIDTH - 30 and " " in text:
        style = ">"  # who edits it has no sign to quote
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def yaml_block(values: object, indent: int) -> str:
    """Return a mapping or a list as lines of YAML, which are folded for this indentation."""
    return yaml.dump(
        values,
        Dumper=_Dumper,
        sort_keys=False,
        width=WIDTH - indent - 16,  # it breaks after the word that is beyond
        allow_unicode=True,
    )


def yaml_env(values: Mapping[str, str], indent: int) -> str:
    """Return variables as a container's list of name and value."""
    return yaml_block([{"name": name, "value": text} for name, text in values.items()], indent)


def shell_exports(values: Mapping[str, str]) -> str:
    """Return variables as `export` lines; `$PWD` and the like in them are expanded."""
    lines = []
    for name, text in values.items():
        escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("`", r"\`")
        quoted = " \\\n  ".join(_lines(escaped, WIDTH - 12 - len(name)))
        needs_quotes = re.search(r"[^\w$./@:=-]", text) is not None
        if needs_quotes:
            quoted = f'"{quoted}"'
        lines.append(f"export {name}={quoted}")
    return "\n".join(lines)
