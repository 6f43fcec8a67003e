"""The command line: suggestions, help, completion, and lines that fit a terminal."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from agent.base.text import NO_TERMINAL, Line, Terminal
from agent.cli.command_line import main
from agent.cli.completion_verb import SHELLS, completion_for
from agent.cli.parser import flags_of
from agent.settings.jobs import BY_NAME
from agent.settings.model import VARIABLES
from support.worlds import SECRET

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("arguments", "verb", "words"),
    [
        (["doctor", "--josn"], "doctor", "did you mean --json?"),
        (["logs", "--folow"], "logs", "did you mean --follow?"),
        (["status", "--whatever"], "status", "unrecognized arguments: --whatever"),
        (
            ["recipe", "verl-grop", "--nodes", "1", "--gpus", "8"],
            "recipe",
            "did you mean verl-grpo?",
        ),
        (
            ["recipe", "nothing", "--nodes", "1", "--gpus", "8"],
            "recipe",
            "known are rehearsal, verl",
        ),
        (["recipe", "verl-grpo"], "recipe", "--nodes, --gpus"),
        (["completion", "tcsh"], "completion", "no shell 'tcsh': known are bash, zsh, fish"),
        (["explain", "a", "b"], "explain", "unrecognized arguments: b"),
    ],
)
def test_a_usage_error_begins_with_what_is_wrong(
    arguments: list[str], verb: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line: the verb, what was probably meant, and where to read on; exit code 2."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"pod-agent {verb}: ")
    assert words in shown
    assert shown.endswith(f"`pod-agent {verb} --help` lists what it takes\n")
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--no-such-flag", "--no-such-flag"),
        ("no-such-verb", "no-such-verb"),
        ("doctor -- x", "--"),
        ("-- x", "--"),
        ("status --watc", "--watc"),
        ("run python train.py", "pod-agent run -- python train.py"),
        ("run python 'a b'", "unrecognized arguments: python 'a b'. A job's command goes"),
        ("plan python train.py -- --lr 1", "pod-agent plan -- python train.py"),
        ("python train.py", "pod-agent run -- python train.py"),
        ("staus", "no verb 'staus': did you mean 'status'?"),
        ("docter --json", "did you mean 'doctor'?"),
        ("version", "did you mean '--version'?"),
        ("run AGENT_JOB=x", "AGENT_JOB=x. Variables stand before: AGENT_JOB=x pod-agent run"),
        ("rehersal", "did you mean 'rehearsal'?"),
        ("--nodes 2", "--nodes stands before the verb: pod-agent VERB --nodes"),
        ("run --no-such", "unrecognized arguments: --no-such. A job's command goes"),
        ("init x.py", "no platform 'x.py'"),
        ("init --node 2 slurm", "unrecognized arguments: --node: did you mean --nodes?"),
        ("init --output=x", "--output=x. `pod-agent init --help` lists what it takes"),
    ],
)
def test_a_slip_on_the_command_line(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A forgotten -- and a mistyped verb are usage errors with a suggestion."""
    try:
        code: object = main(shlex.split(arguments))
    except SystemExit as usage:
        code = usage.code
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, "")
    assert words in shown.err


@pytest.mark.parametrize(
    "line",
    [
        "init dstack rehearsal --nodes 2 --to",
        "init dstack --nodes 2 rehearsal --to",
        "init --nodes 2 --to {folder} dstack rehearsal",
    ],
)
def test_arguments_and_options_in_any_order(line: str, tmp_path: Path) -> None:
    """An argument behind an option is read as one before it."""
    words = line.format(folder=tmp_path).split()
    if words[-1] == "--to":
        words.append(str(tmp_path))
    assert main(words) == 0
    assert "nodes: 2" in (tmp_path / "rehearsal.dstack.yml").read_text()


def test_help_of_run_names_variables_placeholders_and_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All that it names exists."""
    with pytest.raises(SystemExit) as caught:
        main(["run", "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "{nodes} {gpus_per_node}" in shown
    assert "pod-agent run -- python3 train.py" in shown
    assert {*re.findall(r"\b[A-Z]+_[A-Z_]+\b", shown)} <= {*VARIABLES}


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_names_all(shell: str) -> None:
    """Every verb, option and recipe is in the script, which the shell accepts."""
    script = completion_for(shell)
    for word in ("status", "completion", *BY_NAME, *flags_of("logs"), *flags_of("recipe")):
        assert word.lstrip("-") in script
    if shutil.which(shell):
        done = subprocess.run(
            [shell, "-n"], input=script, capture_output=True, text=True, check=False, timeout=30
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sta"], "status"),
        (["logs", "--f"], "--follow"),
        (["recipe", "verl-"], "verl-grpo verl-ppo"),
        (["run", "--", "pl"], ""),
        (["plan", "--"], "-- --check --help --json --verbose"),
    ],
)
def test_bash_completes(words: list[str], found: str) -> None:
    """The function is called as bash calls it."""
    call = (
        f"COMP_WORDS=(pod-agent {' '.join(words)}); COMP_CWORD={len(words)}; _pod_agent; "
        'echo "${COMPREPLY[@]}"'
    )
    script = f"{completion_for('bash')}\n{call}"
    done = subprocess.run(
        ["bash"], input=script, capture_output=True, text=True, check=True, timeout=30
    )
    assert sorted(done.stdout.split()) == [word for word in found.split() if word != "--"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("pod-agent sta", "status"),
        ("pod-agent logs --f", "--follow"),
        ("pod-agent recipe verl-", "verl-grpo verl-ppo"),
        ("/shared/pod-agent init sl", "slurm"),
    ],
)
def test_fish_completes(line: str, found: str, tmp_path: Path) -> None:
    """Fish completes a line from the script."""
    script = f"{completion_for('fish')}\ncomplete -C '{line}'"
    done = subprocess.run(
        ["fish", "--no-config"],
        input=script,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert sorted(row.split("\t")[0] for row in done.stdout.splitlines()) == found.split()


def test_lines_fit_the_terminal() -> None:
    """A folded text continues below itself; a pipe gets it in one line."""
    line = Line("warn ", "one two three four five six seven eight nine", "busy")
    shown = Terminal(40).render([line], str)
    assert shown == "warn one two three four five six seven\n     eight nine"
    assert NO_TERMINAL.render([line], str) == f"warn {line.text}"


def test_a_secret_is_masked_before_it_could_be_folded() -> None:
    """Half a secret would not be recognized."""
    text = f"{'word ' * 6}a secret of two words"
    shown = Terminal(40).render([Line("", text)], lambda t: t.replace("secret of two", "****"))
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("environ", "is_colored"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_colors(environ: dict[str, str], *, is_colored: bool) -> None:
    """NO_COLOR and a dumb terminal turn them off."""
    shown = Terminal.of(environ, 80).render([Line("FAIL ", "no", "bad")], str)
    assert shown == ("\x1b[1;31mFAIL \x1b[0mno" if is_colored else "FAIL no")


def test_tables_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`env` and `recipes` for programs, without secrets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AUTH_TOKEN", SECRET)
    monkeypatch.setenv("AGENT_MODEL", f"/models/{SECRET}")
    assert main(["env", "--json"]) == 0
    text = capsys.readouterr().out
    assert SECRET not in text
    rows = {row["name"]: row for row in json.loads(text)}
    assert rows.keys() == VARIABLES.keys()
    assert rows["AGENT_MODEL"]["origin"] == "environment"
    assert main(["recipes", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == [*BY_NAME]


def test_the_table_of_variables_with_wrong_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refusals point to it, so it ends with 0: all problems first, then every variable."""
    monkeypatch.setenv("EXPECTED_WORKERS", "two")
    monkeypatch.setenv("AGENT_WAIT_HEDA", "5m")
    monkeypatch.setenv("AGENT_MODEL", "a-model")
    assert main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAIL ")
    assert any("EXPECTED_WORKERS: got 'two'" in line for line in lines[:4])
    assert any("AGENT_WAIT_HEAD (did you mean that?)" in line for line in lines[:4])
    assert any(line.startswith("AGENT_MODEL=a-model") for line in lines)
    assert main(["env", "--json"]) == 0
    out, err = capsys.readouterr()
    assert {row["name"]: row["value"] for row in json.loads(out)}["EXPECTED_WORKERS"] == "two"
    assert "EXPECTED_WORKERS: got 'two'" in err


def test_the_table_of_variables_begins_with_unknown_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are what the reader looks for."""
    monkeypatch.setenv("AGENT_TRAIN_DATASET", "x")
    assert main(["env"]) == 0
    assert "did you mean AGENT_TRAIN_DATA?" in capsys.readouterr().out.splitlines()[0]
