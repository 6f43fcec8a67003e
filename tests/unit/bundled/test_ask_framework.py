"""The program that asks an installed framework whether it accepts a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agent
from support.asked_frameworks import UNKNOWN, install_openrlhf, install_verl, write

PROGRAM = Path(agent.__file__).parent / "bundled/ask_framework.py"
PPO = "openrlhf.cli.train_ppo_ray"
MAIN = "verl.trainer.main_ppo"
TRL = """
import argparse

class TrainerSetupError(Exception):
    pass

def parser():
    made = argparse.ArgumentParser(prog="trl_grpo")
    made.add_argument("--config", nargs="*", default=[])
    made.add_argument("--beta", type=float)
    made.add_argument("--cpu", action="store_true")
    return made

def config_of(options):
    import transformers
    if transformers.TrainingArguments.world_size != 16:
        raise RuntimeError("no world")
    if any(word.startswith("betta=") for word in options.config):
        raise TrainerSetupError("TRL has no betta")
    if "bf16=false" not in options.config:
        raise ValueError("no GPU")
    if options.cpu:  # its backend, gloo
        raise ValueError("no process group")
"""


def ask(tmp_path: Path, module: str, *argv: str, folder: str = "") -> dict[str, str]:
    """Run the program in a Python that has the packages of a folder."""
    asked = {"module": module, "argv": argv, "world": 16, "folder": folder}
    env = {"PATH": os.defpath, "PYTHONPATH": str(tmp_path), "POD_AGENT_QUESTION": json.dumps(asked)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=env, cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


ACCEPTED = {"verdict": "accepted", "what": "", "key": "", "near": ""}
UNKNOWN_WORD = "unrecognized arguments: "
NOT_A_NUMBER = "argument --train.batch_size: invalid int value: 'two'"
BATCH_SIZE = "--train.batch_size"
APPEND = "To append use +"
OVERRIDE = "Could not override 'trainer."
NO_CONFIG = "Cannot find primary config 'ppo_trainr'."


@pytest.mark.parametrize(
    ("module", "words", "what", "key", "near"),
    [
        (PPO, "--train.batch_size 8", "", "", ""),
        (PPO, "--train.batch 8", "", "", ""),  # argparse takes abbreviations
        (PPO, "--train.bach 8", f"{UNKNOWN_WORD}--train.bach 8", "--train.bach", BATCH_SIZE),
        (PPO, "--train.batch_size=two", NOT_A_NUMBER, BATCH_SIZE, ""),
        (PPO, "--vllm.num_engines 3", "AssertionError: 3 engines do not fit", "", ""),
        (MAIN, "trainer.nnodes=2 +new=1", "", "", ""),
        (
            MAIN,
            "trainer.nnodez=2",
            f"{OVERRIDE}nnodez'. {APPEND}trainer.nnodez=2",
            "trainer.nnodez",
            "trainer.nnodes",
        ),
        (
            MAIN,
            "+trainer.nnodes=2",
            f"{OVERRIDE}nnodes'. {APPEND}+trainer.nnodes=2",
            "+trainer.nnodes",
            "",
        ),
        (MAIN, "--config-name ppo_trainr", NO_CONFIG, "", ""),
        (MAIN, "--confg-name=x", f"{UNKNOWN_WORD}--confg-name=x", "--confg-name", ""),
    ],
)
def test_a_command_is_accepted_or_refused(  # noqa: PLR0913 - a row of a table
    tmp_path: Path, module: str, words: str, what: str, key: str, near: str
) -> None:
    """By the framework's parser and assertions or its composed tree; neither trains."""
    install_openrlhf(tmp_path)
    install_verl(tmp_path)
    verdict = "refused" if what else "accepted"
    answer = {"verdict": verdict, "what": what, "key": key, "near": near}
    assert ask(tmp_path, module, *words.split()) == answer
    assert not (tmp_path / "trained").exists()


def test_a_program_whose_training_is_not_known_does_not_run(tmp_path: Path) -> None:
    """Whatever it does could be the training."""
    install_openrlhf(tmp_path, UNKNOWN)
    assert ask(tmp_path, PPO)["what"].endswith("to run it could do anything")
    assert not (tmp_path / "trained").exists()


def test_a_tree_that_does_not_compose_by_itself_refuses_nothing(tmp_path: Path) -> None:
    """Then the arguments are not what it fails by."""
    install_verl(tmp_path)
    (tmp_path / "verl/trainer/config/ppo_trainer.json").unlink()
    assert ask(tmp_path, MAIN, "trainer.nnodes=2")["verdict"] == "unknown"


def test_the_jobs_folder_comes_first(tmp_path: Path) -> None:
    """A checkout there is what the job imports."""
    install_verl(tmp_path)
    other = tmp_path / "code"
    install_verl(other, '{"mine": 1}')
    assert ask(tmp_path, MAIN, "mine=2")["verdict"] == "refused"
    assert ask(tmp_path, MAIN, "mine=2", folder=str(other)) == ACCEPTED


def test_what_is_not_there_is_unknown(tmp_path: Path) -> None:
    """A package that is missing, a program without a form that is known, a parser's bug."""
    missing = ask(tmp_path, MAIN)
    assert missing["verdict"] == "unknown"
    assert missing["what"].startswith("verl.trainer.main_ppo is not installed for ")
    install_verl(tmp_path)
    write(tmp_path / "verl/trainer/main_ppo.py", "print('no form')\n")
    assert "in a form that is not known" in ask(tmp_path, MAIN)["what"]
    install_openrlhf(tmp_path, "def train(args): ...\n1 / 0\n")
    assert ask(tmp_path, PPO)["what"] == "ZeroDivisionError: division by zero"
    install_openrlhf(tmp_path, "import lacking as parser\ndef train(args): ...\nparser.parse()\n")
    assert "lacking" in ask(tmp_path, PPO)["what"]


def test_trl_is_asked_by_its_configuration(tmp_path: Path) -> None:
    """For the number of processes, and as a machine without GPUs can."""
    write(tmp_path / "transformers.py", "class TrainingArguments:\n    world_size = 1\n")
    program = tmp_path / "trl_grpo.py"
    write(program, TRL)
    assert ask(tmp_path, str(program), "--beta", "0.1") == ACCEPTED
    assert ask(tmp_path, str(program), "--cpu") == ACCEPTED
    typo = ask(tmp_path, str(program), "--config", "betta=1")
    assert (typo["verdict"], typo["what"], typo["key"]) == ("refused", "TRL has no betta", "betta")
    wrong = ask(tmp_path, str(program), "--beta", "x")
    assert wrong["key"] == "--beta"
    assert wrong["what"].endswith("argument --beta: invalid float value: 'x'")
