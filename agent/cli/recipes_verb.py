"""`pod-agent recipes`: the recipes, one a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.base.text import Line
from agent.cli.options import JSON
from agent.cli.printing import print_json, terminal_of
from agent.frameworks import recipe_of
from agent.frameworks.recipe import version_text
from agent.settings.jobs import RECIPES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

OPTIONS = (JSON,)


def run(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    """Print the list."""
    if options.json:
        print_json([*recipe_rows()], str)
    else:
        print(terminal_of(environ).render(recipe_lines(), str))


def recipe_rows() -> Iterator[dict[str, Any]]:
    """Yield what each recipe is: name, framework, versions, needs, reward server, launcher."""
    for known in RECIPES:
        recipe = recipe_of(known)
        yield {
            "name": known.name,
            "framework": known.framework,
            "versions": [version_text(version) for version in recipe.VERSIONS],
            "needs": [*known.needs],
            "reward": known.reward,
            "launcher": known.launcher,
            "about": recipe.ABOUT,
        }


def recipe_lines() -> Iterator[Line]:
    """Yield a line for each recipe."""
    for row in recipe_rows():
        framework = f"{row['framework'] or 'no framework'} {', '.join(row['versions'])}".rstrip()
        text = (
            f"{row['about']}; {framework}; needs {', '.join(row['needs']) or 'nothing'}; "
            f"reward server {row['reward']}; by {row['launcher']}"
        )
        yield Line(f"{row['name']:<16} ", text, "title")
