"""`recipes` and `recipe`, as a user meets them: the real program, and what it prints."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agent.base.errors import AgentError, PreflightError
from agent.base.text import Terminal, shell_line
from agent.cli.options import whole_number, whole_numbers
from agent.cli.recipe_verb import (
    command_json,
    command_text,
    node_sizes,
    recipe_command,
)
from agent.cli.recipes_verb import recipe_lines
from agent.frameworks.recipe import Command, NodeSize
from agent.frameworks.verl_keys import VERL
from agent.settings.jobs import RECIPES, RecipeInfo
from support.toy_recipe import NAME, NEEDED, toy

__all__ = ["toy"]

AGENT = str(Path(sys.executable).parent / "pod-agent")
ENVIRON = {**NEEDED, "PATH": "/usr/bin:/bin", "AGENT_CHECKPOINTS": "/volume/c"}


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the program with nothing in its environment but what is given."""
    env = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C.UTF-8", **environ}
    return subprocess.run(
        [AGENT, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def parsed(nodes: str, gpus: str, cpus: str | None = None) -> tuple[NodeSize, ...]:
    """Return the sizes that these flags give."""
    of_each = None if cpus is None else whole_number(cpus)
    return node_sizes(whole_number(nodes), whole_numbers(gpus), of_each)


@pytest.mark.parametrize(
    ("nodes", "gpus", "cpus", "sizes"),
    [
        ("2", "8", None, (NodeSize(8), NodeSize(8))),
        ("3", "8,8,4", "32", (NodeSize(8, 32), NodeSize(8, 32), NodeSize(4, 32))),
        ("1", "0", "4", (NodeSize(0, 4),)),
        ("0", "8", None, None),
        ("two", "8", None, None),
        ("2", "8,8,4", None, None),
        ("2", "", None, None),
        ("2", "8,", None, None),
        ("1", "-1", None, None),
        ("1", "8", "many", None),
    ],
)
def test_nodes_on_the_command_line(
    nodes: str, gpus: str, cpus: str | None, sizes: tuple[NodeSize, ...] | None
) -> None:
    """One number for all, or one for each; a wrong number is a usage error."""
    if sizes is None:
        with pytest.raises((ValueError, argparse.ArgumentTypeError)):
            parsed(nodes, gpus, cpus)
        return
    assert parsed(nodes, gpus, cpus) == sizes


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("version", "used", "warned"),
    [
        *(("0.8.0", "0.8.0", False), ("0.9.9", "0.9.1", True), (None, "0.9.1", False)),
        *(("0.5.0", "0.8.0", True), ("2.0", "0.9.1", True)),
    ],
)
def test_the_version(version: str | None, used: str, *, warned: bool) -> None:
    """The given one, else the installed one, else the newest known."""
    command, warning = recipe_command(ENVIRON, NAME, parsed("2", "8"), version)
    assert f"--for={used}" in command.argv
    assert bool(warning) == warned
    assert command.argv[0] == "python3"


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("environ", "gpus", "version", "said"),
    [
        ({}, "3", None, "a batch of 1024 is not divisible by 6"),
        ({"AGENT_JOB_ARGS": "--no-such"}, "8", None, "--no-such is no argument of it"),
    ],
)
def test_a_recipe_that_cannot_be_made_is_refused(
    environ: dict[str, str], gpus: str, version: str | None, said: str
) -> None:
    """The exit code is 78, with the reason."""
    with pytest.raises(AgentError) as caught:
        recipe_command({**ENVIRON, **environ}, NAME, parsed("2", gpus), version)
    assert caught.value.end.exit_code == 78
    assert said in caught.value.sentence()
    assert isinstance(caught.value, PreflightError) == (version is None)


@pytest.mark.parametrize(
    ("recipe", "args", "known", "other"),
    [
        ("openrlhf-sft", "--train.new_flag 3", "0.11.2", "0.12.0"),
        ("openrlhf-sft", "--train.new_flag", "0.11.2", "0.11.9"),
        ("verl-grpo", "trainer.new_key=3", VERL.releases[-1], "1.0.0"),
    ],
)
def test_arguments_of_an_unknown_version_are_passed_on(
    recipe: str, args: str, known: str, other: str
) -> None:
    """A later release may have what the nearest known one lacks."""
    environ = {**ENVIRON, "AGENT_JOB": recipe, "AGENT_JOB_ARGS": args}
    with pytest.raises(PreflightError) as caught:
        recipe_command(environ, recipe, parsed("1", "8"), known)
    assert "new_" in caught.value.sentence()
    made, warning = recipe_command(environ, recipe, parsed("1", "8"), other)
    assert args in " ".join(made.argv)
    assert f"taken for {known}" in warning


def test_the_output() -> None:
    """The text can be pasted and has the reason of each argument; JSON has the three parts."""
    made = Command(
        ("python3", "-m", "x.y", "a.b=1", "+c.url='{reward_url}'"),
        {"MODE": "fast"},
        {"a.b": "one", "c.url": "scores"},
        ("16 GPUs",),
        ("it may fail",),
    )
    text = command_text(made).splitlines()
    pasted = [line for line in text if not line.startswith("#")]
    assert shlex.split(" ".join(line.rstrip("\\") for line in pasted)) == list(made.argv)
    assert """    "+c.url='{reward_url}'\"""" in pasted
    assert text[len(pasted) :] == [
        "# in the environment: MODE=fast",
        "# a.b: one",
        "# c.url: scores",
        "# 16 GPUs",
    ]
    data = json.loads(command_json(made))
    assert data == {
        "argv": [*made.argv],
        "env": {**made.env},
        "why": {**made.why},
        "notes": ["16 GPUs"],
        "warnings": ["it may fail"],
    }


@pytest.mark.parametrize("word", ["it's", "it's $HOME", "it's `x`", "it's \\n", 'it\'s "x"', "a b"])
def test_a_shell_reads_the_words_back(word: str) -> None:
    """Whatever quotes a printed word has, a shell gets the word itself."""
    script = f"printf %s {shell_line([word])}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == word


def test_a_recipe_for_torchrun_is_marked() -> None:
    """Otherwise its command after `--` would be submitted to Ray."""
    command, _ = recipe_command(ENVIRON, "openrlhf-sft", parsed("2", "8"), "0.11.2")
    assert "# after -- it wants AGENT_LAUNCHER=torchrun" in command_text(command).splitlines()


@pytest.mark.parametrize("known", RECIPES, ids=lambda known: known.name)
def test_what_is_not_set_stays_a_placeholder(known: RecipeInfo) -> None:
    """Every recipe can be shown without a model and data."""
    own = {"PATH": "/usr/bin:/bin"}
    if known.name == "slime-grpo":  # what describes a model to Megatron follows from its name
        own["AGENT_JOB_ARGS"] = "--model-args scripts/models/qwen3-4B.sh"
    made, _ = recipe_command(own, known.name, parsed("2", "8"), None)
    shown = " ".join(made.argv)
    assert all(f"<{need}>" in shown for need in known.needs)
    own |= NEEDED
    assert "<" not in " ".join(recipe_command(own, known.name, parsed("2", "8"), None)[0].argv)


def test_every_recipe_has_a_line() -> None:
    """The list has a line for each recipe, in the order of the table."""
    heading, *rows = Terminal(80).render(recipe_lines(), str).splitlines()
    assert heading.split()[0] == "recipe"
    assert [row.split()[0] for row in rows[: len(RECIPES)]] == [job.name for job in RECIPES]
    assert len(rows) == len(RECIPES) + 2
    assert all(len(row) <= 80 for row in rows)
    by_name = {row.split()[0]: " ".join(row.split()[1:]) for row in rows}
    assert by_name["verl-grpo"].startswith("GRPO own, or a server ray verl 0.5 to ")
    assert by_name["openrlhf-sft"].startswith("fine-tuning - torchrun openrlhf ")
    assert by_name["search-r1-ppo"].startswith("PPO own ray search-r1")
    needs = {need for job in RECIPES[1:] for need in job.needs}
    assert needs == {"AGENT_MODEL", "AGENT_TRAIN_DATA"}, "as the line below the table says"


def test_the_program() -> None:
    """The verbs of the real program, their codes and streams."""
    listed = run("recipes")
    assert listed.returncode == 0, listed.stderr
    assert "\nrehearsal " in listed.stdout
    shown = run("recipe", "rehearsal", "--nodes", "2", "--gpus", "0", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["argv"][2] == "rehearsal"
    named = run("recipe", "trl-grpo", "--model", "our/model", "--nodes", "1", "--gpus", "8")
    assert "our/model" in named.stdout, named.stderr
    for wrong in (("no-such",), ("rehearsal", "--nodes", "2", "--gpus", "8,8,8")):
        done = run("recipe", *wrong)
        assert (done.returncode, done.stdout) == (2, "")
