"""Finds secrets in environment variables and masks them in text.

A variable holds a secret if its name matches a pattern below. Every value is also searched,
whatever its name: passwords in URLs and connection strings, JSON members, options and headers, and
tokens of well-known services, which are masked in every text. A value shorter than 6 characters, an
ordinary word (`disabled`) or a path (`/usr/bin/askpass`) also occurs in ordinary text: it stays.
"""

from __future__ import annotations

import binascii
import json
import re
import shlex
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, quote_plus, unquote

from msgspec.structs import asdict, replace

from agent.base.value import Value
from agent.settings.model import SECRETS, secret_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.settings.model import Settings

V = TypeVar("V", bound=Value)
MASK = "********"
NOTIFY = "AGENT_NOTIFY"  # secret URLs

_KNOWN_SECRETS = {
    *(*SECRETS, "DBPASS", "SSHPASS", "USERPASS", "HF_TOKENS", "KAGGLE_KEY", "VOLC_SK"),
    "RAY_JOB_HEADERS",
}
"""Names that hold a secret, though the pattern does not match."""

_NO_SECRETS = {"GOOGLE_APPLICATION_CREDENTIALS"}  # names that hold none, though the pattern matches

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
_NAMES_NO_SECRET = re.compile(
    r"""_(?:PATH|FILE|FILENAME|DIR|DIRECTORY|FOLDER|SOCK|SOCKET|NAME|MODE|TYPE|METHOD|ALG|ALGORITHM
      |TTL|EXPIRY|EXPIRES|LENGTH|LEN|LIMIT|COUNT|SIZE|BUDGET|ENABLED|DISABLED|REQUIRED|TIMEOUT
      |POLICY|VERSION|RATE|HOST|PORT|URL|URI|ENDPOINT|USER|USERNAME|REGION|PREFIX|API_KEY_HEADER)$
      |(?:^|_)TOKEN_IDS?$ | (?:^|_)PUBLIC_?KEY
      |(?:^|_)(?:MAX|MIN|NUM|EOS|BOS|PAD|UNK|SEP|CLS|MASK|STOP|IMAGE|SPECIAL|NEW)
       (?:_[A-Z0-9]{1,30}){0,4}_TOKEN
    """,
    re.VERBOSE,
)
_WEBHOOK = re.compile(r"(?:^|_)WEBHOOK(?:_URL)?$")  # its URL is the secret

SHORTEST = 6  # shorter values are not masked: they also occur in ordinary text
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
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OPTION = re.compile(
    r"(?<![\w.-])--?([A-Za-z][\w.-]*) +(?:\"([^\"]+)\"|'([^']+)'|([^\s;&'\"-][^\s;&'\"]*))"
)
_TOKEN = re.compile(
    r"""(?<![A-Za-z0-9])(?:
        hf_[A-Za-z0-9]{30,} | sk-[\w-]{32,}
      | gh[pousr]_[A-Za-z0-9]{36,} | github_pat_\w{50,} | glpat-[\w-]{20,}
      | A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9]) | AIza[\w-]{35} | xox[abprs]-[\w-]{20,}
      | rpa_[A-Z0-9]{30,} | nvapi-[\w-]{40,} | KGAT_[a-f0-9]{32} | wandb_v1_\w{40,}
      | npm_[A-Za-z0-9]{36} | pypi-AgE[\w-]{50,} | dop_v1_[a-f0-9]{64} | dckr_pat_[\w-]{20,}
    )""",
    re.VERBOSE,
)
"""Tokens of well-known services, by their published shapes.

A model may repeat the beginning of one: behind each few characters are read in vain.
"""
_WORDS = re.compile(r"sk-[^0-9]*")  # `sk-` with words, such as the name of a class in a page
_WEB_TOKEN = re.compile(r"(?<![\w-])[\w-]{13,}\.eyJ[\w-]{10,}\.[\w-]{16,}")
"""A JSON Web Token: three runs of such characters, each of which is read three times at most."""


def looks_secret(name: str) -> bool:
    """Return whether a variable of this name holds a secret."""
    word = _CAMEL_CASE.sub("_", name).upper().replace("-", "_").replace(".", "_")
    if word in _KNOWN_SECRETS or _WEBHOOK.search(word):
        return True
    is_none = word in _NO_SECRETS or _NAMES_NO_SECRET.search(word)
    return not is_none and _SECRET.search(word) is not None


def secrets_in(name: str, text: str) -> set[str]:
    """Return the secrets of a variable: its whole value, or parts of it."""
    secrets = set(_embedded_secrets(text))
    whole = text.strip()
    if looks_secret(name) and (name in SECRETS or not _is_ordinary(whole)):
        secrets.add(whole)
    if name == NOTIFY:
        secrets |= {*_parts_of_urls(text)}
    return {secret for secret in secrets if len(secret) >= SHORTEST}


def _parts_of_urls(text: str) -> Iterator[str]:
    """Yield each of several URLs, and its path, in which alone the secret may be quoted."""
    for url in text.split():
        yield url
        path = url.partition("://")[2].partition("/")[2]
        if len(path) >= SHORTEST:
            yield f"/{path}"
            yield f"/{path.partition('?')[0]}"


def _is_ordinary(text: str) -> bool:
    return text.lower() in _ORDINARY or _PATH.fullmatch(text) is not None


def _embedded_secrets(text: str) -> Iterator[str]:
    """Find secrets that are part of a longer value."""
    # By their place or shape: user info of a URL, a header, a token of a well-known service.
    for user, password in _USER_INFO.findall(text):
        # A short password is masked together with its surroundings, never alone.
        yield password if len(password) >= SHORTEST else f"://{user}:{password}@"
        yield unquote(password)
    yield from _USER_ALONE.findall(text)
    yield from _BEARER.findall(text)
    yield from filter(_is_token, _TOKEN.findall(text))
    yield from _WEB_TOKEN.findall(text)

    # By the name before them: assignments, options, members of JSON.
    pairs = (*_PAIR.finditer(text), *_OPTION.finditer(text))
    named = [(match[1], match[2] or match[3] or match[4]) for match in pairs]
    named += [(key, _unescaped(literal)) for key, literal in _MEMBER.findall(text)]
    for name, value in named:
        if (looks_secret(name) or name.lower() == "pwd") and not _is_ordinary(value):
            yield value


def _is_token(text: str) -> bool:
    return _WORDS.fullmatch(text) is None


def _mask_tokens(text: str) -> str:
    """Mask tokens of well-known services."""
    masked = _TOKEN.sub(lambda match: MASK if _is_token(match[0]) else match[0], text)
    return _WEB_TOKEN.sub(MASK, masked) if ".eyJ" in masked else masked


def _unescaped(literal: str) -> str:
    try:
        return str(json.loads(literal))
    except ValueError:
        return literal[1:-1]


def _encodings(secret: str) -> Iterator[str]:
    """Yield a secret in every form in which a text may contain it."""
    lines = [line.strip() for line in secret.splitlines()] if "\n" in secret else []
    long = (s for s in lines if len(s) >= _SHORTEST_LINE and not s.startswith("-----"))
    for text in (secret, *long):
        json_forms = (json.dumps(text), json.dumps(text, ensure_ascii=False))
        yield from (text, *(form[1:-1] for form in (*json_forms, repr(text))))
        yield shlex.quote(text)[1:-1] if "'" in text else text
        raw = text.encode(errors="surrogatepass")
        yield from (quote(raw, safe=""), quote(raw), quote_plus(raw))
        for before in range(3):  # its offset within a longer base64 text, such as after `user:`
            encoded = binascii.b2a_base64(bytes(before) + raw, newline=False).decode()
            # the first and last characters also hold bits of the neighbors
            core = encoded[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6]
            if len(core) > SHORTEST:
                yield core
                yield core.replace("+", "-").replace("/", "_")


class Redactor:
    """Masks known secrets in text, in every form, and tokens of well-known services."""

    def __init__(self, secrets: Iterable[str]) -> None:
        long = {secret for secret in secrets if len(secret) >= SHORTEST}
        forms = {form for secret in long for form in _encodings(secret)}
        known = sorted(map(re.escape, forms), key=len, reverse=True)
        self._pattern = re.compile("|".join(known)) if known else None

    def clean(self, text: str) -> str:
        """Mask every secret in a text."""
        known = text if self._pattern is None else self._pattern.sub(MASK, text)
        return _mask_tokens(known)

    def clean_fields(self, value: V) -> V:
        """Mask every known secret in the texts of a value, nested ones included."""
        changed = {}
        for name, old in asdict(value).items():
            new = self.clean(old) if type(old) is str else old
            if isinstance(old, Value):
                new = self.clean_fields(old)
            elif isinstance(old, tuple):
                new = tuple(self.clean_fields(x) if isinstance(x, Value) else x for x in old)
            if new != old:
                changed[name] = new
        return replace(value, **changed) if changed else value


def redactor_for(
    environ: Mapping[str, str], settings: Settings | None, more: Iterable[tuple[str, str]] = ()
) -> Redactor:
    """Return a redactor for the secrets of an environment.

    `more` are further names and texts, such as those of a services file.
    """
    everything = (*environ.items(), *more)
    secrets = {secret for name, text in everything for secret in secrets_in(name, text)}
    if settings is not None:
        texts = secret_texts(settings)
        secrets |= {*texts.values(), *_parts_of_urls(texts.get(NOTIFY, ""))}
    return Redactor(secrets)
