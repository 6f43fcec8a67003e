"""Secrets are masked in all text output."""

from __future__ import annotations

import base64
import json
import shlex
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base.value import Value
from agent.settings.redact import MASK, Redactor, looks_secret, redactor_for
from causes.ordinary.lines import compose
from support.worlds import SECRET, settings_of

IS_SECRET = [
    *("RAY_AUTH_TOKEN", "WANDB_API_KEY", "RUNPOD_API_KEY", "HF_TOKEN"),
    *("HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "OPENAI_APIKEY", "AWS_SECRET_ACCESS_KEY"),
    *("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "DB_PASSWORD"),
    *("DB_PASS", "MYSQL_PWD", "PGPASSWORD", "MYSQL_ROOT_PASSWORD"),
    *("SSH_PASSPHRASE", "REDIS_PASSWD", "GITHUB_PAT", "AZURE_DEVOPS_EXT_PAT"),
    *("my_secret", "CLIENT_SECRET", "SECRET_KEY", "SECRETS"),
    *("GOOGLE_CREDENTIALS", "CREDENTIAL", "PRIVATE_KEY", "SSH_PRIVATE_KEY"),
    *("ENCRYPTION_KEY", "SIGNING_KEY", "AUTHORIZATION", "BASIC_AUTH"),
    *("DOCKER_AUTH_CONFIG", "SLURM_JWT", "SLACK_WEBHOOK_URL", "npm-auth.token"),
    *("HF_TOKENS", "KAGGLE_KEY", "VOLC_SK", "WANDB_KEY", "apiKey", "accessToken", "S3_ACCESS_KEY"),
    *("RUNPOD_APIKEY", "PASSWORD", "RABBITMQ_DEFAULT_PASS"),
]
IS_NONE = [
    *("RAY_AUTH_TOKEN_PATH", "WANDB_API_KEY_FILE", "RAY_AUTH_MODE", "TOKENIZERS_PARALLELISM"),
    *("KEYBOARD", "MONKEY", "PATH", "PWD"),
    *("OLDPWD", "AGENT_JOB", "INPUT_KEY", "LABEL_KEY"),
    *("PROMPT_KEY", "REWARD_KEY", "SORT_KEY", "KEY"),
    *("PUBLIC_KEY", "SSH_PUBLIC_KEY", "MAX_TOKENS", "MAX_TOKEN_LEN"),
    *("NEW_TOKENS", "NUM_TOKENS", "EOS_TOKEN", "EOS_TOKEN_ID"),
    *("PAD_TOKEN", "SSH_AUTH_SOCK", "GIT_AUTHOR_NAME", "XAUTHORITY"),
    *("BYPASS", "COMPASS", "PASSENGER", "NUM_PASSES"),
    *("PASS_AT_K", "GOOGLE_APPLICATION_CREDENTIALS", "SSL_KEY_FILE", "TOKEN_URL"),
    *("SECRET_NAME", "CREDENTIALS_DIRECTORY", "DISPATCH", "PATTERN"),
    "AUTHOR",
]


def test_names_of_secrets() -> None:
    """A secret is detected by its variable's name, and its value is masked."""
    for name in IS_SECRET:
        assert looks_secret(name), name
        assert redactor_for({name: SECRET}, None).clean(f"a {SECRET} b") == f"a {MASK} b", name


class Outer(Value):
    """A value with texts, some of them in other values."""

    text: str
    number: int = 1
    inner: Outer | None = None
    several: tuple[Outer, ...] = ()


def test_a_value_is_masked_with_those_in_it() -> None:
    """Events and records are masked field by field."""
    redactor = redactor_for({"HF_TOKEN": SECRET}, None)
    inner, masked = Outer(f"a {SECRET} b"), Outer(f"a {MASK} b")
    found = redactor.clean_fields(replace(inner, inner=inner, several=(inner, Outer("none"))))
    assert found == replace(masked, inner=masked, several=(masked, Outer("none")))
    clean = Outer("no secret", inner=Outer("none"))
    assert redactor.clean_fields(clean) is clean


def test_names_that_only_sound_like_one() -> None:
    """A path to a secret, a count of tokens, a column's key: their values stay readable."""
    text = "message-of-the-day, message"
    for name in IS_NONE:
        assert not looks_secret(name), name
        assert redactor_for({name: "message-of-the-day"}, None).clean(text) == text, name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "true"),
        ("HF_TOKEN", "abc"),
        ("DB_PASSWORD", "disabled"),
        ("GIT_AUTH", "/usr/lib/git-core/git-askpass"),
        ("APP_SECRET", "/run/secrets/app"),
        ("APP_SECRET", "~/.config/app"),
        ("DATABASE_URL", "postgres://db.lan:5432/rl"),
        ("HTTP_PROXY", "http://proxy.lan:3128"),
        ("GIT_REPO", "ssh://git@example.org/a.git"),
        ("AGENT_JOB_ARGS", "--eos_token=<|endoftext|> --max-tokens=131072 --label-key=message"),
    ],
)
def test_a_value_that_is_no_secret_tears_no_hole(name: str, value: str) -> None:
    """Short values, ordinary words, paths and URLs without a password stay readable."""
    assert redactor_for({name: value}, None).clean(f"it is {value}") == f"it is {value}"


@pytest.mark.parametrize(
    ("name", "value", "hidden", "shown"),
    [
        ("DATABASE_URL", "postgres://app:hunter22@db:5432/rl", "hunter22", "postgres://app:"),
        ("SENTRY_DSN", "https://pub:hunter22@o1.example/3", "hunter22", "@o1.example/3"),
        ("ANY", "redis://:hunter22@cache:6379", "hunter22", "cache:6379"),
        ("HTTPS_PROXY", "http://me:p%40ssw0rd@proxy:1", "p@ssw0rd", "proxy:1"),
        ("REPO", "https://0123456789abcdef0123@example.org/a", "0123456789abcdef0123", "/a"),
        ("PG", "host=db user=app password=hunter22 port=5432", "hunter22", "user=app"),
        ("PG", "host=db password='hunter 22'", "hunter 22", "host=db"),
        ("STORE", "AccountName=a;AccountKey=Zm9vYmFyCg==;End=b", "Zm9vYmFyCg==", "AccountName=a"),
        ("AGENT_RUNTIME_ENV", '{"env_vars": {"HF_TOKEN": "hunter22"}}', "hunter22", "env_vars"),
        ("AGENT_PREPARE", "HF_TOKEN=hunter22 python get.py", "hunter22", "python get.py"),
        ("AGENT_PREPARE", "curl -H 'Authorization: Bearer hunter22'", "hunter22", "curl"),
        ("AGENT_JOB_ARGS", "--hf-token=hunter22 --steps=3", "hunter22", "--steps=3"),
        ("ANY", "hf_abcdefghijklmnopqrstuvwxyz012345", "hf_abcdefghijklmnopqrstuvwxyz012345", ""),
    ],
)
def test_a_secret_within_a_value(name: str, value: str, hidden: str, shown: str) -> None:
    """Only the password in a URL or connection string is masked."""
    cleaned = redactor_for({name: value}, None).clean(f"{value} and {hidden}")
    assert hidden not in cleaned
    assert MASK in cleaned
    assert shown in cleaned


@pytest.mark.parametrize(
    "token",
    [
        "hf_" + "aB3" * 12,
        "sk-" + "a1B2" * 12,
        "sk-ant-api03-" + "a1B2" * 12,
        "sk-proj-" + "aBcD" * 20 + "1" + "efGh" * 30,
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1_B" * 14,
        "glpat-" + "a1B2" * 5,
        "AKIA" + "A1B2" * 4,
        "AIza" + "a1B2c" * 7,
        "nvapi-" + "a1B2" * 12,
        "KGAT_" + "a1b2" * 8,
        "wandb_v1_" + "a1B2" * 12,
        "eyJ" + "hbGciOiJIUzI1NiJ9.eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0." + "a1B2" * 8,
    ],
)
def test_a_token_that_no_variable_holds(token: str) -> None:
    """A key of a well-known service in the output is masked, in any context."""
    assert Redactor([]).clean(f"using key='{token}', see") == f"using key='{MASK}', see"


def test_options_of_a_command() -> None:
    """Both forms of an option with a secret are masked; ordinary options stay."""
    command = (
        "train.py --hf_token=hunter22 --api-key 'hunter 33' --steps 400000 --token-limit 512000"
    )
    cleaned = redactor_for({}, None, [("", command)]).clean(f"ran {command}: hunter22, hunter 33")
    assert "hunter" not in cleaned
    assert "--steps 400000 --token-limit 512000" in cleaned


def test_ordinary_logs_are_not_masked() -> None:
    """In 20,000 lines of ordinary logs of the frameworks nothing is taken for a secret."""
    lines = compose(20_000)
    cleaned = redactor_for({"WANDB_API_KEY": "0f" * 20}, None).clean("\n".join(lines))
    assert [line for line in cleaned.splitlines() if MASK in line] == []


AWKWARD = 'it\'s a "q\\uote" +/ü&=%'
KEY = "-----BEGIN KEY-----\nAAAAfirst0\nBBBBsecond\n-----END KEY-----\n"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"a": AWKWARD}),
        json.dumps({"a": AWKWARD}, ensure_ascii=False),
        repr(AWKWARD),
        shlex.quote(AWKWARD),
        f"https://example.org/?q={quote(AWKWARD, safe='')}",
        f"https://example.org/{quote(AWKWARD)}",
        urlencode({"q": AWKWARD}),
        base64.b64encode(AWKWARD.encode()).decode(),
        f"Basic {base64.b64encode(f'user:{AWKWARD}'.encode()).decode()}",
        f"Basic {base64.b64encode(f'me:{AWKWARD}'.encode()).decode()}",
        base64.urlsafe_b64encode(f"xyz:{AWKWARD}:and more".encode()).decode(),
    ],
)
def test_a_secret_in_another_form(text: str) -> None:
    """Escaped, quoted or encoded, a secret is still one."""
    cleaned = Redactor([AWKWARD]).clean(text)
    assert MASK in cleaned
    assert "uote" not in cleaned
    assert len(cleaned) < len(text) - 8


def test_each_line_of_a_long_secret() -> None:
    """A key of many lines is masked line by line, as a log shows it; its frame is no secret."""
    redactor = redactor_for({"SSH_PRIVATE_KEY": KEY}, None)
    assert redactor.clean("| BBBBsecond |\n| AAAAfirst0 |") == f"| {MASK} |\n| {MASK} |"
    assert redactor.clean(json.dumps(KEY.strip())) == f'"{MASK}"'
    assert redactor.clean("-----BEGIN KEY-----") == "-----BEGIN KEY-----"


@pytest.mark.timeout(60)  # an expression that backtracks takes hours
def test_a_long_value_is_read_in_a_moment() -> None:
    """The largest value that an environment can hold, of whatever letters, costs no second."""
    for piece in ("a", "a.", "a:", "://", "x=", '"a":"', "://a:", "Bearer "):
        redactor_for({"BIG": piece * (131_000 // len(piece))}, None)


WORDS = st.text("ab\n.*", max_size=12)


@given(WORDS, st.lists(st.text("ab\n.", min_size=6, max_size=9), min_size=1), WORDS)
def test_no_secret_gets_through(before: str, secrets: list[str], after: str) -> None:
    """Wherever a secret stands in a text, also beside and across others, it is masked."""
    cleaned = Redactor(secrets).clean(before + secrets[0] + after)
    assert MASK in cleaned
    assert [secret for secret in secrets if secret in cleaned] == []


HOOKS = "https://hooks.example.org/services/T0/B0/k3y?x=1  http://ntfy.example:8080/topic-of-mine"


@pytest.mark.parametrize("from_file", [False, True])
def test_an_address_for_notices_is_a_secret(*, from_file: bool) -> None:
    """Each URL of AGENT_NOTIFY, and its path alone, as an error or a proxy's log has it."""
    environ = {"AGENT_NOTIFY": HOOKS}
    redactor = redactor_for({} if from_file else environ, settings_of(environ))
    assert "k3y" not in redactor.clean("POST https://hooks.example.org/services/T0/B0/k3y?x=1")
    assert redactor.clean("GET /services/T0/B0/k3y?x=1 gives 404") == f"GET {MASK} gives 404"
    assert redactor.clean("no /topic-of-mine here") == f"no {MASK} here"
    assert redactor.clean("hooks.example.org refuses") == "hooks.example.org refuses"


def test_secrets_come_from_environment_and_settings() -> None:
    """What the environment names a secret is masked, and what was read from a file too.

    Of one that begins with another, no tail is left; what is too short is no secret.
    """
    settings = settings_of({"RAY_AUTH_TOKEN": f"{SECRET}-from-file"})
    redactor = redactor_for({"HF_TOKEN": SECRET, "HOME": "/home/somebody"}, settings)
    text = redactor.clean(f"{SECRET}-from-file, {SECRET}, /home/somebody")
    assert text == f"{MASK}, {MASK}, /home/somebody"
    assert Redactor(["1", "true"]).clean("1 is true") == "1 is true"
