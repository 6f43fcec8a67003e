"""Secrets are masked wherever text passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.settings.redact import MASK, Redactor, looks_secret, redactor_for
from unit.worlds import SECRET, settings_of


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("RAY_AUTH_TOKEN", True),
        ("WANDB_API_KEY", True),
        ("RUNPOD_API_KEY", True),
        ("HF_TOKEN", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("OPENAI_APIKEY", True),
        ("DB_PASSWORD", True),
        ("my_secret", True),
        ("GOOGLE_CREDENTIALS", True),
        ("RAY_AUTH_TOKEN_PATH", False),
        ("WANDB_API_KEY_FILE", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("KEYBOARD", False),
        ("MONKEY", False),
        ("PATH", False),
        ("AGENT_JOB", False),
    ],
)
def test_names_that_tell_of_a_secret(name: str, secret: bool) -> None:  # noqa: FBT001 - a column
    """A secret is known by its variable's name; a path to one is none."""
    assert looks_secret(name) is secret


WORDS = st.text("ab\n.*", max_size=12)


@given(WORDS, st.lists(st.text("ab\n.", min_size=6, max_size=9), min_size=1), WORDS)
def test_no_secret_gets_through(before: str, secrets: list[str], after: str) -> None:
    """Wherever a secret stands in a text, also beside and across others, it is masked."""
    cleaned = Redactor(secrets).clean(before + secrets[0] + after)
    assert MASK in cleaned
    assert [secret for secret in secrets if secret in cleaned] == []


def test_the_longer_of_two_secrets_goes_first() -> None:
    """A secret that begins with another leaves no tail behind."""
    text = Redactor([SECRET, f"{SECRET}-tail"]).clean(f"a {SECRET}-tail b {SECRET} c")
    assert text == f"a {MASK} b {MASK} c"


def test_ordinary_text_is_left_alone() -> None:
    """Without secrets, or with values too short to be one, nothing is torn out of a text."""
    assert Redactor([]).clean("as it was") == "as it was"
    assert Redactor(["1", "true"]).clean("1 is true") == "1 is true"


def test_secrets_come_from_environment_and_settings() -> None:
    """What the environment names a secret is masked, and what was read from a file too."""
    settings = settings_of({"RAY_AUTH_TOKEN": f"{SECRET}-from-file"})
    redactor = redactor_for({"HF_TOKEN": f"{SECRET}-hf", "HOME": "/home/somebody"}, settings)
    text = redactor.clean(f"{SECRET}-from-file, {SECRET}-hf, /home/somebody")
    assert text == f"{MASK}, {MASK}, /home/somebody"
