"""The one place through which text passes that might carry a secret: what is one, and its forms.

Which variables hold secrets, by their names, in capitals or not, `-` and `.` taken for `_`:

| is a secret | as in |
| --- | --- |
| the known names | `WANDB_API_KEY`, `HF_TOKEN`, `RUNPOD_API_KEY`, `PGPASSWORD`, `SLURM_JWT` … |
| a word with PASSWORD, PASSWD or PASSPHRASE in it | `DB_PASSWORD`, `MYSQLPASSWORD` |
| a word that begins with SECRET | `AWS_SECRET_ACCESS_KEY`, `CLIENT_SECRET` |
| a word TOKEN, APIKEY, CREDENTIAL(S), CREDS, JWT, WEBHOOK, AUTHORIZATION, … | `GITHUB_TOKEN` |
| API, ACCESS, PRIVATE, ENCRYPTION, SIGNING, … before KEY | `API_KEY`, `AWS_ACCESS_KEY_ID` |
| the name of one who sells models or machines before KEY | `OPENAI_KEY`, `WANDB_KEY` |
| PASS, PAT, PWD or AUTH at the end | `DB_PASS`, `GITHUB_PAT`, `MYSQL_PWD` |

No secret is what only speaks of one: a name that ends with PATH, FILE, DIR, NAME, MODE, URL and
the like (`RAY_AUTH_TOKEN_PATH`, `RAY_AUTH_MODE`), tokens that are counted or belong to a model
(`MAX_TOKENS`, `EOS_TOKEN_ID`), and any other KEY (`INPUT_KEY`, `LABEL_KEY`, `PUBLIC_KEY`).

Whatever a variable's name, its value is searched for secrets in it: the password of a URL
(`scheme://user:password@host`), `password=…` and its kin in a connection string, members of JSON
with a name as above, and a value that is nothing but a well-known service's token (`hf_…`, `sk-…`).

A value shorter than 6 characters, an ordinary word (`disabled`) or a path (`/usr/bin/askpass`) is
not masked: it would tear holes into ordinary text. A secret is also masked where it stands escaped
as in JSON, quoted as for a shell, encoded as in a URL or in base64, and by each of its lines.
"""

from __future__ import annotations

import binascii
import json
import re
import shlex
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, quote_plus, unquote

from agent.settings.model import SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.settings import Settings

T = TypeVar("T")
MASK = "********"

KNOWN_SECRETS = {
    *SECRETS,
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACEHUB_API_TOKEN", "HUGGINGFACE_TOKEN"),
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "NGC_API_KEY"),
    *("RUNPOD_API_KEY", "VAST_API_KEY", "LAMBDA_API_KEY", "COMET_API_KEY", "NEPTUNE_API_TOKEN"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN"),
    *("GITHUB_PAT", "GH_TOKEN", "GITLAB_TOKEN", "AZURE_DEVOPS_EXT_PAT", "AZURE_CLIENT_SECRET"),
    *("AZURE_STORAGE_KEY", "PGPASSWORD", "MYSQL_PWD", "MYSQL_ROOT_PASSWORD", "REDISCLI_AUTH"),
    *("SSHPASS", "DBPASS", "USERPASS", "SLURM_JWT", "DOCKER_AUTH_CONFIG", "RAY_JOB_HEADERS"),
}
"""Names that hold a secret whatever the pattern says of them."""

NO_SECRETS = {
    *("TOKENIZERS_PARALLELISM", "SSH_AUTH_SOCK", "INPUT_KEY", "LABEL_KEY", "PUBLIC_KEY"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "PWD", "OLDPWD"),
}
"""Names that hold none, whatever the pattern says of them."""

_SECRET = re.compile(
    r"""(?:^|_)(?:
        [A-Z0-9]*(?:PASSWORD|PASSWD|PASSPHRASE)S? | SECRET[A-Z0-9]* | TOKEN | [A-Z0-9]*APIKEYS?
      | (?:AUTH|API|ACCESS|BEARER|REFRESH)_?TOKENS? | CREDENTIALS? | CREDS? | JWT | WEBHOOK
      | AUTHORIZATION | AUTH_(?:CONFIG|HEADER)
      | (?:API|ACCESS|PRIVATE|ENCRYPTION|DECRYPTION|SIGNING|AUTH|MASTER|ACCOUNT|STORAGE|DEPLOY
          |LICENSE|SERVICE|SESSION|SHARED|FERNET|SSH|HMAC|AES|RSA)_?KEYS?
      | (?:OPENAI|ANTHROPIC|GEMINI|COHERE|MISTRAL|GROQ|DEEPSEEK|WANDB|HF|HUGGINGFACE|RUNPOD|VAST
          |LAMBDA|AWS|GCP|GOOGLE|AZURE|NGC|SERPER|TAVILY|STRIPE|SENDGRID)_KEY
    )(?:$|_) | _(?:PASS|PAT|PWD|AUTH)$ | ^(?:PASS|PAT|AUTH)$""",
    re.VERBOSE,
)
_ONLY_SPEAKS_OF_ONE = re.compile(
    r"""_(?:PATH|FILE|FILENAME|DIR|DIRECTORY|FOLDER|SOCK|SOCKET|NAME|MODE|TYPE|METHOD|ALG|ALGORITHM
      |TTL|EXPIRY|EXPIRES|LENGTH|LEN|LIMIT|COUNT|SIZE|BUDGET|ENABLED|DISABLED|REQUIRED|TIMEOUT
      |POLICY|VERSION|RATE|HOST|PORT|URL|URI|ENDPOINT|USER|USERNAME|REGION|PREFIX|API_KEY_HEADER)$
      |(?:^|_)TOKEN_IDS?$ | (?:^|_)PUBLIC_?KEY
      |(?:^|_)(?:MAX|MIN|NUM|EOS|BOS|PAD|UNK|SEP|CLS|MASK|STOP|IMAGE|SPECIAL|NEW)(?:_[A-Z0-9]+)*_TOKEN
    """,
    re.VERBOSE,
)
_WEBHOOK = re.compile(r"(?:^|_)WEBHOOK(?:_URL)?$")  # its URL is the secret

SHORTEST = 6
"""Shorter values are no secrets worth the name, and would tear holes into ordinary text."""
_SHORTEST_LINE = 8
_ORDINARY = {
    *("always", "default", "disabled", "enabled", "inherit", "localhost", "message", "never"),
    *("nothing", "offline", "online", "optional", "password", "passwd", "python", "python3"),
    *("required", "secret", "undefined", "unlimited", "worker", "workers", "builtin", "rehearsal"),
}
_PATH = re.compile(
    r"(?:~|\.{1,2})/[^\n]*|/(?:app|bin|boot|code|data|dev|etc|fsx|gpfs|home|lib|lib64|lustre|media"
    r"|mnt|models|nas|nfs|opt|proc|root|run|runpod-volume|sbin|scratch|shared|srv|storage|sys|tmp"
    r"|usr|Users|var|workspace)(?:/[^\n]*)?"
)

_USER_INFO = re.compile(r"://([^\s/?#:@\"']*):([^\s/?#\"']+)@")
_USER_ALONE = re.compile(r"://([^\s/?#:@\"']{20,})@")
_PAIR = re.compile(
    r"(?<![\w./-])-{0,2}([A-Za-z][\w.-]*)(?:=|: |:(?=[\"']))"
    r"(?:\"([^\"]+)\"|'([^']+)'|([^\s;&'\"]+))"
)
_BEARER = re.compile(r"\b(?:Bearer|Basic) +([\w.~+/=-]{8,})", re.IGNORECASE)
_MEMBER = re.compile(r'"([\w.-]+)"\s*:\s*("(?:[^"\\]|\\.)*")')
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SERVICES_TOKEN = re.compile(
    r"(?:sk-|hf_|gh[pousr]_|github_pat_|glpat-|xox[abpr]-|rpa_|AKIA|ASIA|AIza|npm_|pypi-|dop_v1_|eyJ)"
    r"[A-Za-z0-9_\-.]{16,}"
)


def looks_secret(name: str) -> bool:
    """Say whether a variable's name tells of a secret."""
    word = _HUMP.sub("_", name).upper().replace("-", "_").replace(".", "_")
    if word in KNOWN_SECRETS or _WEBHOOK.search(word):
        return True
    if word in NO_SECRETS or _ONLY_SPEAKS_OF_ONE.search(word):
        return False
    return bool(_SECRET.search(word))


def secrets_in(name: str, text: str) -> set[str]:
    """Return the secrets that a variable holds: its value as a whole, or what stands in it."""
    found = set(_inside(text))
    whole = text.strip()
    is_one = looks_secret(name) and (name in SECRETS or not _is_ordinary(whole))
    if is_one or _SERVICES_TOKEN.fullmatch(whole):
        found.add(whole)
    return {secret for secret in found if len(secret) >= SHORTEST}


def _is_ordinary(text: str) -> bool:
    return text.lower() in _ORDINARY or _PATH.fullmatch(text) is not None


def _inside(text: str) -> Iterator[str]:
    """Find the secrets that stand in a longer value."""
    for user, password in _USER_INFO.findall(text):
        # A short one is masked with what stands around it: alone it would tear holes.
        yield password if len(password) >= SHORTEST else f"://{user}:{password}@"
        yield unquote(password)
    yield from _USER_ALONE.findall(text)
    yield from _BEARER.findall(text)
    named = [(m[1], m[2] or m[3] or m[4]) for m in _PAIR.finditer(text)]
    named += [(key, _unescaped(literal)) for key, literal in _MEMBER.findall(text)]
    for name, value in named:
        if (looks_secret(name) or name.lower() == "pwd") and not _is_ordinary(value):
            yield value


def _unescaped(literal: str) -> str:
    try:
        return str(json.loads(literal))
    except ValueError:
        return literal[1:-1]


def _forms(secret: str) -> Iterator[str]:
    """Return a secret as it may stand in a text."""
    for text in (secret, *(_lines(secret) if "\n" in secret else ())):
        yield text
        yield json.dumps(text)[1:-1]
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield repr(text)[1:-1]
        yield shlex.quote(text)[1:-1] if "'" in text else text
        raw = text.encode(errors="surrogatepass")
        yield quote(raw, safe="")
        yield quote(raw)
        yield quote_plus(raw)
        yield from _in_base64(raw)


def _lines(secret: str) -> Iterator[str]:
    stripped = (line.strip() for line in secret.splitlines())
    return (s for s in stripped if len(s) >= _SHORTEST_LINE and not s.startswith("-----"))


def _in_base64(raw: bytes) -> Iterator[str]:
    """Return what base64 makes of it wherever in a longer text it begins, `user:` before it."""
    for before in range(3):
        encoded = binascii.b2a_base64(bytes(before) + raw, newline=False).decode()
        # the first and last characters hold bits of the neighbours, too
        core = encoded[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6]
        if len(core) > SHORTEST:
            yield core
            yield core.replace("+", "-").replace("/", "_")


class Redactor:
    """Replaces every secret that it was told of, in each of its forms."""

    def __init__(self, secrets: Iterable[str]) -> None:
        long = {secret for secret in secrets if len(secret) >= SHORTEST}
        found = {form for secret in long for form in _forms(secret)}
        self._pattern = (
            re.compile("|".join(re.escape(s) for s in sorted(found, key=len, reverse=True)))
            if found
            else None
        )

    def clean(self, text: str) -> str:
        """Mask every known secret in a text."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def clean_fields(self, value: T) -> T:
        """Mask every known secret in the texts of a dataclass, nested ones included."""
        if self._pattern is None or not is_dataclass(value) or isinstance(value, type):
            return value
        changed = {}
        for field in fields(value):
            old = getattr(value, field.name)
            new = self.clean(old) if type(old) is str else self.clean_fields(old)
            if new != old:
                changed[field.name] = new
        return replace(value, **changed) if changed else value


def redactor_for(
    environ: Mapping[str, str],
    settings: Settings | None,
    more: Iterable[tuple[str, str]] = (),
) -> Redactor:
    """Collect the secrets of an environment: by the names of its variables, and in their values.

    `more` are names and texts from elsewhere, as a services file has them.
    """
    everything = (*environ.items(), *more)
    found = {secret for name, text in everything for secret in secrets_in(name, text)}
    if settings is not None:
        held = (settings.wandb_api_key, settings.ray_auth_token)
        found |= {s.reveal() for s in held if s is not None}
    return Redactor(found)
