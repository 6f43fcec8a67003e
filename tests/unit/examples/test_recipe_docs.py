"""Pages made of the tables in framework_defaults are up to date."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from agent.base.errors import AgentError
from agent.base.versions import version_text
from agent.cli.options import model_size
from agent.cli.recipe_verb import node_sizes, recipe_command
from agent.frameworks import recipe_of
from agent.settings.jobs import BY_NAME
from support.framework_defaults import (
    FOLDER,
    NAMES,
    UNSET,
    command_of_seed,
    default_of,
    load,
    parsed,
    releases_of,
)
from support.golden import assert_golden
from support.sources import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.frameworks.recipe import Command

SIZES = ("1.5B", "7.6B", "14.8B", "32.8B", "72.7B")
MOST_NODES = 8
WEIGHTS = 2  # Bytes of a parameter in a saved model
WEIGHTS_AND_OPTIMIZER = 14  # The same in a checkpoint that can be resumed
SHARDS = 12  # The same of verl's shards alone, without an HF model beside them
MIGRATE = """# From your script to the agent

A script of your own, and five documents that people start from, step by step: their steps are on
the left, the agent's on the right. Every node runs the same command, `pod-agent`; differences are
in the environment. `pod-agent plan -v` shows every step of a node, `pod-agent recipe NAME --nodes N
--gpus G` the command of a recipe. A recipe that this version lacks is refused by its name, with
code 78, before anything starts; so is an `AGENT_` variable that resembles a known one. Other
unknown ones are named in a warning.

Below the steps stands each launch command of the document, in the environment that gives the same
job: what each node has, beside the platform's own variables. What differs, and what the recipe
adds, is listed; tests compare the two, argument by argument. Addresses, ids and paths are examples.
"""
OWN_SCRIPT = FOLDER / "own_script.md"

BEGINNING = """# {name}

```
AGENT_JOB={name} AGENT_MODEL={model} {environment} pod-agent
```

- **Packages**: {packages}.
- {data}.
- **What a run leaves**: {leaves}.

| parameters | least nodes of 8 × 80 GB | memory of a node | a checkpoint, about |
| --- | --- | --- | --- |
{sizes}

These are [estimates](README.md#memory) for nodes of 1 TiB, without a reward model and adapters.
{story}
## Its settings beside those of its framework's scripts
"""

COLUMNS = """**Columns** of the data: {columns}; others go into
  [`AGENT_JOB_ARGS`](README.md#data-and-rewards)"""

SETTINGS = """The values are those for a model of 7B on nodes of 8 GPUs whose memory is not
known, without a reward server, evaluation data and W&B; [sizes](README.md#sizes) says what changes
them. A setting that nobody sets has the framework's default. `AGENT_JOB_ARGS` replaces any of them.
"""

EQUAL = {
    "same": "Set as in every script",
    "defaults": "Left at the framework's default, as in every script",
}
"""What stands below the table of settings."""


def cell(text: object) -> str:
    """Return a text for a cell of a table."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    """Return a value as code, or nothing."""
    return f"`{cell(text)}`" if text else ""


def theirs(recipe: dict[str, Any], setting: dict[str, Any]) -> str:
    """Return the scripts' values, each with the scripts that have it."""
    found = setting["theirs"]
    if isinstance(found, str):
        return said(recipe, setting, found)
    return "; ".join(
        f"{said(recipe, setting, one['value'])} ({', '.join(one['in'])})" for one in found
    )


def said(recipe: dict[str, Any], setting: dict[str, Any], value: str) -> str:
    """Return a value of a script, or the default where the script has none."""
    if value != UNSET:
        return code(value)
    defaults = {default_of(setting, release) for release in releases_of(recipe, setting)} - {None}
    names = " or ".join(filter(None, map(code, sorted(map(str, defaults)))))
    return f"{names} by default" if names else "not set"


def ours(recipe: dict[str, Any], setting: dict[str, Any]) -> str:
    """Return the recipe's value; it may depend on the nodes."""
    value = setting.get("ours")
    if value is None:
        return said(recipe, setting, UNSET)
    if isinstance(value, str):
        return code(value)
    unset = said(recipe, setting, UNSET)
    return ", ".join(
        f"{code(value[shape]) if shape in value else unset} on {shape}"
        for shape in recipe["shapes"]
    )


def beginning(name: str) -> str:
    """Return what a page begins with: how to run the recipe, and its needs by size."""
    page = load("pages")[name]
    environment = " ".join(f"{key}={value}" for key, value in page["environment"].items())
    rows = [size_row(name, page, billions) for billions in SIZES]
    facts = {key: page[key] for key in ("model", "packages", "leaves")}
    facts["data"] = f"**Data**: {page['data']}" if "data" in page else COLUMNS.format(**page)
    if "{versions}" in facts["packages"]:
        facts["packages"] = facts["packages"].replace("{versions}", known_versions(name))
    story = FOLDER / f"{name}.md"
    facts["story"] = f"\n{story.read_text(encoding='utf-8')}" if story.is_file() else ""
    return BEGINNING.format(name=name, environment=environment, sizes="\n".join(rows), **facts)


def known_versions(name: str) -> str:
    """Return the minor releases that a recipe knows: 0.5 to 0.9."""
    versions = recipe_of(BY_NAME[name]).VERSIONS
    return " to ".join(version_text(version[:2]) for version in (versions[0], versions[-1]))


@pytest.mark.parametrize("name", ["verl-grpo", "openrlhf-grpo", "openrlhf-sft", "trl-grpo"])
def test_the_readme_has_the_versions(name: str) -> None:
    """Its table says which releases a recipe knows."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and f"`{name}`" in line]
    assert [f"| {known_versions(name)} |" in row for row in rows] == [True]


def size_row(name: str, page: dict[str, Any], size: str) -> str:
    """Return the least nodes for a model of a size, with the memory that each of them needs."""
    given = {**page["environment"], "AGENT_CHECKPOINTS": "/volume/checkpoints"}
    given.pop("AGENT_SERVICES", None)  # its file is an example
    environ = {**given, "AGENT_MODEL": page["model"], "PATH": "/usr/bin:/bin"}
    copies = page.get("models", 1)
    parameters = float(size.removesuffix("B"))
    for count in range(1, MOST_NODES + 1):
        nodes = node_sizes(count, [8], None, 80, 1024)
        try:
            command, _ = recipe_command(environ, name, nodes, None, model_size(size))
        except AgentError:
            continue
        stored = copies * (WEIGHTS if page.get("saves_models") else WEIGHTS_AND_OPTIMIZER)
        if name.startswith("verl-"):
            has_model = any("hf_model" in word for word in command.argv)
            stored = SHARDS * copies + WEIGHTS * has_model
        disk = f"{parameters * stored:,.0f} GB"
        return f"| {size} | {count} | {host_memory(command)} | {disk} |"
    raise AssertionError(f"{size} needs more than {MOST_NODES} nodes")


def host_memory(command: Command) -> str:
    """Return the memory that a command needs of a node."""
    found = re.search(r"a node needs ([\d.,]+ GB)", " ".join(command.notes))
    assert found is not None
    return found[1]


def megatron_row(name: str, row: list[Any]) -> str:
    """Return how Megatron divides a model on some nodes, and what a node needs."""
    model, count, gpus, memory, host = row
    nodes = node_sizes(count, [gpus], None, memory, host)
    environ = {"AGENT_BACKEND": "megatron", "AGENT_MODEL": model, "PATH": "/usr/bin:/bin"}
    command, _ = recipe_command(environ, name, nodes, None)
    why = command.why["actor_rollout_ref.actor.megatron.tensor_model_parallel_size"]
    layout, _, arithmetic = why.partition(": ")
    divided = arithmetic.partition(" = ")[2].partition(";")[0]
    size = f"{count}×{gpus}×{memory}"
    return f"| {model.partition('/')[2]} | {size} | {divided} | {layout} | {host_memory(command)} |"


def settings_page(name: str) -> str:
    """Return docs/recipes/NAME.md."""
    recipe = load(name)
    intro = recipe["intro"] if "intro" in recipe else f"{beginning(name)}\n{SETTINGS}"
    sizes = [megatron_row(recipe["recipe"], row) for row in recipe.get("sizes", ())]
    intro = intro.replace("SIZES", "\n".join(sizes))
    lines = [
        intro.lstrip(),
        "| source | file | about |",
        "| --- | --- | --- |",
    ]
    for source in recipe["source"]:
        if "package" in source:
            file = f"{source['file']} of the package {source['package']}"
        else:
            where = f"https://github.com/{source['repository']}/blob/{source['commit']}"
            short = f"{source.get('tag', source['commit'][:7])}"
            file = f"[{source['file']}]({where}/{source['file']}), {short}"
        lines.append(f"| {source['id']} | {file} | {cell(source['about'])} |")
    lines += [
        "",
        "| setting | ours | their scripts | why ours differs |",
        "| --- | --- | --- | --- |",
    ]
    for setting in recipe["setting"]:
        only = f" ({', '.join(setting['releases'])})" if "releases" in setting else ""
        cells = [
            code(setting["name"]) + only,
            ours(recipe, setting),
            theirs(recipe, setting),
            cell(setting.get("why", "")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    for table, what in EQUAL.items():
        if table in recipe:
            named = [f"{code(name)} {cell(value)}" for name, value in recipe[table].items()]
            lines += ["", f"{what}: {', '.join(named)}."]
    return "\n".join(lines) + "\n"


def typed(environment: dict[str, str], recipe: str) -> Iterator[str]:
    """Yield the environment as a shell's words; long ones take several lines."""
    for name, value in {"AGENT_JOB": recipe, **environment}.items():
        if name != "AGENT_JOB_ARGS":
            yield f"export {name}={shlex.quote(value)}"
            continue
        yield f'export {name}="'
        words: list[str] = []
        for word in value.split(" "):
            if word.startswith("--") or "=" in word or not words:
                words.append(word)
            else:
                words[-1] += f" {word}"
        yield from (f"  {word}" for word in words)
        yield '"'


def migrate_page() -> str:
    """Return docs/migrate.md."""
    documents, seeds = load("documents")["document"], load("seeds")["seed"]
    lines = [MIGRATE, "- [A script of your own](#a-script-of-your-own)"]
    for document in documents:
        title = document["title"]
        lines.append(f"- [{title}](#{anchor(title)})")
    lines += ["", OWN_SCRIPT.read_text(encoding="utf-8").rstrip("\n")]
    for document in documents:
        lines += ["", f"## {document['title']}", ""]
        lines += ["| in the document | with the agent |", "| --- | --- |"]
        lines += [f"| {there} | {here} |" for there, here in document["steps"]]
        for seed in seeds:
            if seed["document"] in document["documents"] and "job" in seed and "ours" in seed:
                lines += ["", *seed_section(seed)]
    return "\n".join(lines) + "\n"


def anchor(title: str) -> str:
    """Return the anchor of a heading without punctuation but commas."""
    return title.lower().replace(",", "").replace(" ", "-")


def seed_section(seed: dict[str, Any]) -> Iterator[str]:
    """Yield a launch command of a document: what is typed here, and what differs."""
    mine = seed["ours"]
    yield f"### {seed['about']}"
    yield ""
    if "file" in seed:
        where = f"https://github.com/{seed['repository']}/blob/{seed['commit']}/{seed['file']}"
        yield f"The script is [{seed['file']}]({where})."
    release = (
        f", {BY_NAME[mine['recipe']].framework} {mine['release']}" if "release" in mine else ""
    )
    count = f"{seed['nodes']} node{'s' * (seed['nodes'] > 1)}"
    yield f"{count} of {seed['gpus']} GPUs{release}:"
    yield ""
    yield "```sh"
    yield from typed(mine["environment"], mine["recipe"])
    yield "pod-agent"
    yield "```"
    if "needs" in mine:
        yield ""
        yield f"It needs {mine['needs']}."
    for key, why in seed.get("doubtful", {}).items():
        yield ""
        yield f"**{code(key)}**: {cell(why)}."
    differs = seed.get("differs", {})
    if differs:
        yield ""
        yield "| differs from the document | here |"
        yield "| --- | --- |"
        yield from (f"| {code(key)} | {cell(why)} |" for key, why in differs.items())
    added = added_by_the_recipe(seed)
    yield ""
    if not added:
        yield "The recipe adds nothing."
        return
    yield "The recipe adds, with the reasons that `pod-agent recipe` prints:"
    yield ""
    yield "```"
    yield from added
    yield "```"


def added_by_the_recipe(seed: dict[str, Any]) -> list[str]:
    """Return the arguments and variables that the document's command lacks."""
    typed_there = {key.lstrip("+") for key in seed["job"]}
    made = parsed(command_of_seed(seed))
    return [
        f"{key.removeprefix('env:')}={value}{' in the environment' * key.startswith('env:')}"
        for key, value in made.items()
        if key not in typed_there
    ]


PAGES = {f"recipes/{name}.md": name for name in NAMES}


@pytest.mark.parametrize("page", PAGES)
def test_the_settings_of_a_recipe(page: str) -> None:
    """The page has every row of the table."""
    assert_golden(ROOT / "docs" / page, settings_page(PAGES[page]))


def test_no_page_is_left_over() -> None:
    """Each page belongs to a recipe."""
    found = {path.name for path in (ROOT / "docs" / "recipes").glob("*.md")}
    assert {f"{name}.md" for name in NAMES} <= found


def test_migrate() -> None:
    """The page has every step of the documents, and every launch command."""
    assert_golden(ROOT / "docs" / "migrate.md", migrate_page())


@pytest.mark.parametrize(
    "seed", [seed for seed in load("seeds")["seed"] if "ours" in seed], ids=lambda seed: seed["id"]
)
def test_what_is_typed_is_what_is_tested(seed: dict[str, Any]) -> None:
    """A shell gives the words of the page the values of the table."""
    lines = "\n".join(typed(seed["ours"]["environment"], "x"))
    words = shlex.split(lines)
    found = dict(word.split("=", 1) for word in words if word != "export")
    wanted = {"AGENT_JOB": "x", **seed["ours"]["environment"]}
    assert {k: shlex.split(v) for k, v in found.items()} == {
        k: shlex.split(v) for k, v in wanted.items()
    }
