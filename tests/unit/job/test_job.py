"""The job and the services beside it: command lines, placeholders, addresses."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.frameworks.recipe import MisfitError
from agent.job.job import Job, entrypoint, fill, fill_expected, is_sized
from agent.job.services import ON_HEAD, Placeholders, PrepareStep, reward_service, reward_url
from support.heads import RETRIEVER_SPEC
from support.worlds import MACHINE, plan_of, settings_of, with_ray

if TYPE_CHECKING:
    from pathlib import Path

PYTHON = "/opt/ray/bin/python3"
URL = "http://10.0.0.1:5000/get_reward"
PLACE = Placeholders(head_ip="10.0.0.1", log_dir="/logs/run/node")


def filled(*words: str) -> list[str]:
    """Return the words for three nodes of eight GPUs."""
    return fill(words, [8, 8, 8], PLACE, URL, 2, "/checkpoints/x")


@pytest.mark.parametrize(
    ("word", "known"),
    [
        ("{nodes}", "3"),
        ("{gpus_per_node}", "8"),
        ("{total_gpus}", "24"),
        ("{head_ip}", "10.0.0.1"),
        ("--url={reward_url}", "--url=http://10.0.0.1:5000/get_reward"),
        ("{log_dir}/x-{nodes}", "/logs/run/node/x-3"),
        ("{attempt}", "2"),
        ("--save={checkpoints}/a", "--save=/checkpoints/x/a"),
        ("{}", "{}"),
        ("{other}", "{other}"),
        ("{{nodes}}", "{3}"),
        ("{ nodes }", "{ nodes }"),
        ('{"a": {"nodes": 1}}', '{"a": {"nodes": 1}}'),
        ("{nodes", "{nodes"),
        ("${nodes}", "$3"),
        ("{NODES}", "{NODES}"),
        ("{nodes-1}", "2"),
        ("{nodes+1}/{nodes*2}", "4/6"),
        ("--trainer={total_gpus/2},{gpus_per_node/8}", "--trainer=12,1"),
        ("{attempt+1}", "3"),
        ("{nodes - 1}", "{nodes - 1}"),
        ("{nodes-1-1}", "{nodes-1-1}"),
        ("{nodes-}", "{nodes-}"),
        ("{nodes-one}", "{nodes-one}"),
        ("{head_ip-1}", "{head_ip-1}"),
        ("{rank-1}", "{rank-1}"),
        ("${nodes-1}", "${nodes-1}"),
    ],
)
def test_placeholders(word: str, known: str) -> None:
    """The contract's placeholders are filled; all other braces stay as they are."""
    assert filled("cmd", word) == ["cmd", known]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("{nodes/2}", "{nodes/2} is no whole number: 3/2"),
        ("{total_gpus/0}", "{total_gpus/0} is no whole number: 24/0"),
        ("{nodes-3}", "{nodes-3} is 0, and must be at least 1"),
        ("--n={nodes-4}", "{nodes-4} is -1, and must be at least 1"),
        ("{nodes*0}", "{nodes*0} is 0, and must be at least 1"),
    ],
)
def test_a_computed_size_that_no_cluster_has(word: str, said: str) -> None:
    """It is refused with what was computed."""
    with pytest.raises(MisfitError) as refused:
        filled("cmd", word)
    assert str(refused.value) == said


def test_sizes_for_the_expected_nodes() -> None:
    """Those of GPUs stay where this machine has none, and so does what only the run knows."""
    words = ["{nodes-1}", "{total_gpus/2}", "{gpus_per_node}", "{head_ip}"]
    assert fill_expected(words, 3, 8) == ["2", "12", "8", "{head_ip}"]
    assert fill_expected(words, 3, 0) == ["2", *words[1:]]
    # A command with sizes cannot be submitted for other nodes.
    sized = {
        word: is_sized(Job("command", ("train", word), {})) for word in (words[0], "{attempt+1}")
    }
    assert [*sized.values()] == [True, False]


@given(st.text())
def test_a_value_is_not_filled_again(text: str) -> None:
    """A filled-in value is not searched for placeholders."""
    place = Placeholders(head_ip="{nodes}")
    assert fill(("{head_ip}", "{reward_url}"), [0], place, text, 1, "") == ["{nodes}", text]


@given(st.lists(st.text(st.characters(blacklist_characters="\0", codec="utf-8"))))
def test_quoting_keeps_every_word(words: list[str]) -> None:
    """A shell parses the entrypoint into exactly the given words."""
    line, _ = entrypoint(words, 2)
    assert shlex.split(line) == ["export", "AGENT_ATTEMPT=2;", "exec", *words]


def printed(line: str) -> str:
    """Return what a real shell prints by an entrypoint."""
    return subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, check=True, text=True
    ).stdout


def test_a_real_shell_expands_nothing() -> None:
    """Dollars, quotes, globs and line ends reach the job as they were written."""
    words = ["$HOME", "`id`", "*", "a'b\"c", "x\ny", ";exit 3", "", "ü"]
    line, _ = entrypoint(["printf", "%s|", *words], 1)
    assert printed(line) == "".join(f"{word}|" for word in words)
    # Whatever the folder of its file for steps is called.
    words = ["sh", "-c", 'echo "$AGENT_ATTEMPT $AGENT_PROGRESS_FILE"']
    line, _ = entrypoint(words, 3, progress="/a b/'x'")
    assert printed(line) == "3 /a b/'x'\n"


def test_secrets_of_a_command_are_read_from_a_file(tmp_path: Path) -> None:
    """The command line that Ray shows has none; the job gets each word; the file is removed."""
    hidden = "to'ken $HOME"
    words = ["--lr=1", f"--hf_token={hidden}", "--api-key", hidden, f"a{hidden}=b", f"={hidden}"]
    file = tmp_path / "a file"
    line, secrets = entrypoint(
        ["printf", "%s|", *words], 3, str(file), lambda text: text.replace(hidden, "*")
    )
    assert hidden not in line
    assert "--lr=1 --hf_token=" in line
    file.write_text(secrets)
    assert printed(line) == "".join(f"{word}|" for word in words)
    assert not file.exists()
    again = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=False)
    assert again.returncode != 0
    assert again.stdout == b""


def test_a_command_without_secrets_needs_no_file() -> None:
    """Without a file, as on another machine, the words stay as they are."""
    plain, secret = ["train", "--lr=1"], ["train", "--key=abcdef"]
    assert "rm -f /x" in entrypoint(plain, 1, "/x", str.upper)[1]
    assert entrypoint(plain, 1, "/x") == entrypoint(plain, 1)
    assert entrypoint(secret, 1, "", str.upper) == entrypoint(secret, 1)


def test_which_job_is_planned() -> None:
    """A command is used as given, `none` is none, the default is the rehearsal."""
    command = plan_of({}, command=["python", "a b"]).job
    assert command is not None
    assert (command.name, command.argv, command.recipe) == ("command", ("python", "a b"), None)
    assert plan_of({"AGENT_JOB": "none"}).job is None
    recipe = plan_of({"AGENT_JOB_ARGS": "--steps 3"}, with_ray(MACHINE, executable=PYTHON)).job
    assert recipe is not None
    assert recipe.name == "rehearsal"
    assert recipe.argv[0] == PYTHON
    assert recipe.argv[-2:] == ("--steps", "3")
    assert {"{reward_url}", "{nodes}", "{log_dir}"} <= set(recipe.argv)


TRAIN = ("python", "train.py")
WITH_URL = (*TRAIN, "--reward={reward_url}")


@pytest.mark.parametrize(
    ("environ", "command", "wanted"),
    [
        ({}, None, "builtin"),
        ({"AGENT_JOB": "none"}, None, None),
        ({"AGENT_JOB": "none", "AGENT_REWARD": "builtin"}, None, "builtin"),
        ({}, TRAIN, None),
        ({}, WITH_URL, "builtin"),
        ({"AGENT_REWARD": "builtin"}, TRAIN, "builtin"),
        ({"AGENT_REWARD": "off"}, TRAIN, None),
        ({"AGENT_REWARD": "https://far.example/score"}, WITH_URL, "probed"),
        ({"AGENT_REWARD": "HTTP://far.example/score"}, None, "probed"),
        ({"AGENT_REWARD": "python my_rewards.py --big"}, WITH_URL, "shell"),
    ],
)
def test_which_reward_server_runs(
    environ: dict[str, str], command: tuple[str, ...] | None, wanted: str | None
) -> None:
    """AGENT_REWARD decides; else whether the job needs the URL."""
    settings = settings_of(environ, list(command) if command else None)
    service = reward_service(settings, command)
    if wanted is None:
        assert service is None
        return
    assert service is not None
    if wanted == "probed":
        assert service.argv is None
        return
    assert service.argv is not None
    assert (service.argv[0] == "/bin/sh") == (wanted == "shell")


def test_a_reward_servers_place() -> None:
    """A command gets port and path by its environment; all others the head's address."""
    port = {"AGENT_REWARD_PORT": "5005", "AGENT_REWARD_PATH": "/score"}
    service = reward_service(settings_of({**port, "AGENT_REWARD": "python serve.py"}), None)
    assert service is not None
    assert service.argv == ("/bin/sh", "-c", "python serve.py")
    assert dict(service.env) == port
    assert reward_url([service], Placeholders("10.0.0.1")) == "http://10.0.0.1:5005/score"
    assert reward_url([service], Placeholders("fd00::1")) == "http://[fd00::1]:5005/score"


# --- placeholders in shell commands: no value is parsed by the shell --------------------------

IN_A_SHELL = Placeholders("10.0.0.2", "10.0.0.1", "1", "/logs/run/pod1")
EXACT = [
    'printf %s "{log_dir}"',
    'x="{log_dir}"; printf %s "$x"',
    'printf %s "$(printf %s "{log_dir}")"',
    'sh -c \'printf %s "$1"\' sh "{log_dir}"',
]
"""Commands that print the value as it is."""
LOOSE = ["echo {log_dir}", "echo `echo {log_dir}`", "cat <<E\n{log_dir}\nE", "echo '{log_dir}'"]
"""Commands in which a shell splits the value, or does not read it."""


def outputs(script: str, value: str, folder: Path | None = None) -> str:
    """Run a command as a prepare step does; return its output."""
    step = PrepareStep("x", script, ON_HEAD, 1.0)
    argv = step.argv(replace(IN_A_SHELL, log_dir=value))
    spec = replace(RETRIEVER_SPEC, argv=("/bin/sh", "-c", script))
    assert spec.command(replace(IN_A_SHELL, log_dir=value)) == argv
    done = subprocess.run(argv, capture_output=True, check=False, cwd=folder)
    return done.stdout.decode(errors="replace")


@pytest.mark.parametrize("script", EXACT)
@pytest.mark.parametrize(
    "value", ['/a b/it\'s "so"', "$(id)", "`id`", "a;b&c|d>e", "${x}\\n*", "'"]
)
def test_a_value_is_no_code(script: str, value: str) -> None:
    """It is printed, in any quotes and in a substitution."""
    assert outputs(script, value) == value


@pytest.mark.parametrize("script", EXACT + LOOSE)
@pytest.mark.parametrize(
    "value", ["x$(touch made)", "`touch made`", "'; touch made; '", '"; touch made; "']
)
def test_a_value_runs_nothing(script: str, value: str, tmp_path: Path) -> None:
    """Wherever the placeholder stands."""
    outputs(script, value, tmp_path)
    assert [*tmp_path.iterdir()] == []


@given(st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=20))
def test_any_value(value: str) -> None:
    """What is in double quotes comes as it is."""
    argv = replace(IN_A_SHELL, log_dir=value).shell_command('printf %s "{log_dir}"')
    assert subprocess.run(argv, capture_output=True, check=True).stdout.decode() == value


def test_an_ordinary_value_stays_readable() -> None:
    """Addresses, ranks and ordinary paths are in the command itself, as are unknown values."""
    script = "run {node_ip}:80 {head_ip} {rank} {log_dir}/x ${log_dir}"
    filled = "run 10.0.0.2:80 10.0.0.1 1 /logs/run/pod1/x ${log_dir}"
    assert IN_A_SHELL.shell_command(script) == ["/bin/sh", "-c", filled]
    v6 = replace(IN_A_SHELL, node_ip="fd00::2").shell_command("run http://{node_ip}:80")
    assert v6 == ["/bin/sh", "-c", "run http://[fd00::2]:80"]
    assert Placeholders().shell_command("run {rank} {log_dir}")[2:] == ["run {rank} {log_dir}"]
