"""A user's arguments replace a recipe's, and wrong ones are refused."""

from __future__ import annotations

import argparse
import contextlib
import io
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent.frameworks.arguments import Arguments
from agent.frameworks.recipe import MisfitError

FLAGS = {
    "lr": "1",
    "train_batch_size": "1",
    "train_split": "1",
    "bf16": "0",
    "betas": "2",
    "modules": "*",
    "files": "+",
}
SPELLING = {"train.batch": "train_batch_size"}


def taken(*given: str) -> Arguments:
    """Return the arguments of a small program with what a user gave."""
    return Arguments("train of Demo 1.0", FLAGS, SPELLING, *given)


def made(*given: str) -> Arguments:
    """Return the arguments of a small recipe with what a user gave."""
    arguments = taken(*given)
    arguments.add("train.batch", 128, why="sized")
    arguments.add("bf16")
    return arguments


@pytest.mark.parametrize(
    ("given", "argv"),
    [
        ((), "--train_batch_size 128 --bf16"),
        (("--train_batch_size", "64"), "--train_batch_size 64 --bf16"),
        (("--train_batch_size=64",), "--train_batch_size 64 --bf16"),
        (("--bf16",), "--train_batch_size 128 --bf16"),
        (("--no-bf16",), "--train_batch_size 128"),
        (("--no-bf16", "--bf16"), "--train_batch_size 128 --bf16"),
        (("--bf16", "--no-bf16"), "--train_batch_size 128"),
        (("--no-train_batch_size",), "--bf16"),
        (("--betas", "0.9", "-.95"), "--train_batch_size 128 --bf16 --betas 0.9 -.95"),
        (("--betas", "-1", "2"), "--train_batch_size 128 --bf16 --betas -1 2"),
        (("--modules",), "--train_batch_size 128 --bf16 --modules"),
        (
            ("--modules", "a", "b", "--lr", "1"),
            "--train_batch_size 128 --bf16 --modules a b --lr 1",
        ),
        (("--files=a",), "--train_batch_size 128 --bf16 --files a"),
        (("--lr", "-"), "--train_batch_size 128 --bf16 --lr -"),
        (("--lr=--x",), "--train_batch_size 128 --bf16 --lr=--x"),
    ],
)
def test_given_arguments_replace(given: tuple[str, ...], argv: str) -> None:
    """A flag occurs once, in the recipe's place; the last of several counts."""
    assert " ".join(made(*given).argv()) == argv


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--bathc", "1"), "has no flag --bathc"),
        (("--train-batch-size", "1"), "did you mean --train_batch_size?"),
        (("--train_batch", "1"), "did you mean --train_batch_size?"),
        (("--lr",), "--lr takes one value, not none"),
        (("--lr", "1", "2"), "--lr takes one value, not 1 2"),
        (("--betas", "1"), "--betas takes two values, not 1"),
        (("--betas=1",), "--betas takes two values, not 1"),
        (("--files",), "--files takes one value or more, not none"),
        (("--bf16", "true"), "--bf16 takes no value, not true"),
        (("--bf16=true",), "--bf16 takes no value, not true"),
        (("--no-lr",), "--no-lr leaves out a flag that the recipe does not set"),
        (("--no-bf16=1",), "takes no value"),
        (("--no-nothing",), "has no flag --no-nothing"),
        (("--no-bf61",), "has no flag --no-bf61; did you mean --no-bf16?"),
        (("lr", "1"), "'lr' belongs to no flag"),
        (("--", "1"), "'--' belongs to no flag"),
        (("-x",), "'-x' belongs to no flag"),
    ],
)
def test_wrong_arguments_are_refused(given: tuple[str, ...], said: str) -> None:
    """The message names the variable and the wrong flag or value."""
    with pytest.raises(MisfitError) as refused:
        made(*given).argv()
    assert said in str(refused.value)
    assert str(refused.value).startswith("AGENT_JOB_ARGS: ")


@pytest.mark.parametrize("word", ["--new", "--new=1", "--no-new", "--no-new=1"])
def test_flags_of_an_unknown_release_are_passed_on(word: str) -> None:
    """What a release that is not known may have is passed on as it is, also with `no-`."""
    own = Arguments("train of Demo 2.0", FLAGS, SPELLING, word, "--no-bf16", has_others=True)
    own.add("bf16")
    assert " ".join(own.argv()) == word.replace("=", " ")


def test_numbers_for_sizes() -> None:
    """The user's number takes precedence over the recipe's and must be a number."""
    assert made().whole("train.batch") == 128
    assert made("--train_batch_size", "96").whole("train.batch") == 96
    assert made("--no-train_batch_size").whole("train.batch", 7) == 7
    assert made().whole("lr", 3) == 3
    with pytest.raises(MisfitError, match="--train_batch_size takes a whole number, not 'many'"):
        made("--train_batch_size", "many").whole("train.batch")
    with pytest.raises(MisfitError, match="--train_batch_size must be at least 1"):
        made("--train_batch_size", "0").count("train.batch")


def test_reasons() -> None:
    """A reason is the recipe's, or AGENT_JOB_ARGS; a flag that is left out has none."""
    assert made().why() == {"--train_batch_size": "sized"}
    assert made("--train_batch_size=1", "--lr", "2").why() == {
        "--train_batch_size": "AGENT_JOB_ARGS",
        "--lr": "AGENT_JOB_ARGS",
    }
    assert made("--no-train_batch_size").why() == {}


def test_which_flags_are_set() -> None:
    """A flag is set by the user or the recipe, unless it is left out."""
    assert made().holds("bf16")
    assert not made("--no-bf16").holds("bf16")
    assert made("--lr", "1").holds("lr")
    assert not made().holds("lr")
    assert made("--lr", "1").given("lr")
    assert not made().given("bf16")
    assert made().supports("train.batch")
    assert not made().supports("train.other")


WORDS = st.one_of(
    st.sampled_from([f"--{flag}" for flag in FLAGS]),
    st.sampled_from(
        [
            "--lr=1",
            "--lr=-x",
            "--lr=--",
            "--betas=1",
            "--bf16=1",
            "--modules=",
            "-",
            "--",
            "-1",
            "-.5",
            "",
        ]
    ),
    st.text(string.ascii_letters + string.digits + "-= .", max_size=6),
)


@given(st.lists(WORDS, max_size=6))
def test_argparse_agrees(words: list[str]) -> None:
    """Argparse reads the made arguments as it reads the given ones, and refuses the same."""
    assume(not any(word.startswith("--no-") for word in words))
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag, count in FLAGS.items():
        if count == "0":
            parser.add_argument(f"--{flag}", action="store_true")
        else:
            nargs = {"1": None, "2": 2}.get(count, count)
            parser.add_argument(f"--{flag}", nargs=nargs)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            theirs = vars(parser.parse_args(words))
    except SystemExit:
        with pytest.raises(MisfitError):
            taken(*words).argv()
        return
    try:
        ours = vars(parser.parse_args(list(taken(*words).argv())))
    except MisfitError:
        assert "--" in words, f"{words} would have been taken"
        return
    assert ours == theirs
