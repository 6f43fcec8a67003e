"""Hydra's arguments: quoting that preserves a text, and merging that leaves each key once."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.frameworks.arguments import Override, merged, quoted, read, texts
from agent.frameworks.recipe import MisfitError

KEYS = st.sampled_from(["a", "a.b", "trainer.nnodes", "+a", "++a.b", "~a", "~a.b"])
WORDS = re.compile(r"[\w/.+$%*@?|:-]+", re.ASCII)


def unquoted(value: str) -> str:
    """Read a value as hydra 1.3 does: backslashes count only before a quote and at the end."""
    if WORDS.fullmatch(value):
        return value
    assert value[0] == value[-1] == "'"
    inner = value[1:-1]
    assert not re.search(r"(?<!\\)(\\\\)*'", inner), "a quote in it that is not escaped"
    inner = re.sub(r"(\\+)'", lambda m: m[1][: len(m[1]) // 2] + "'", inner)
    return re.sub(r"\\+\Z", lambda m: m[0][: len(m[0]) // 2], inner)


@given(st.text(min_size=0, max_size=12) | st.text("\\'\"ab=,~#;!(){}[] $é", max_size=8))
def test_quoting_keeps_any_text(text: str) -> None:
    """Hydra reads exactly the text of a path or name."""
    if "${" in text:
        with pytest.raises(MisfitError, match="rename it"):
            quoted(text)
    else:
        assert unquoted(quoted(text)) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
        ("/data/my runs/x", "'/data/my runs/x'"),
        ("http://h:5000/r?a=b", "'http://h:5000/r?a=b'"),
        ("{reward_url}", "'{reward_url}'"),
        ("~/data", "'~/data'"),
        ("it's", r"'it\'s'"),
        ("back\\", r"'back\\'"),
        ("7", "'7'"),
        ("1e5", "'1e5'"),
        ("null", "'null'"),
        ("True", "'True'"),
        ("-inf", "'-inf'"),
        ("", "''"),
        ("été", "'été'"),
    ],
)
def test_quotes_only_where_needed(text: str, value: str) -> None:
    """Plain words have no quotes; others that hydra would split or parse have."""
    assert quoted(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("/d/train.parquet", "/d/train.parquet"),
        ("[/d/a.parquet, '/d/b c.parquet']", "[/d/a.parquet,'/d/b c.parquet']"),
        ("[/d/a.parquet]", "[/d/a.parquet]"),
        ("[x", "'[x'"),
    ],
)
def test_a_list_of_files_stays_a_list(text: str, value: str) -> None:
    """Verl takes several files as `[a, b]`."""
    assert texts(text) == value


@pytest.mark.parametrize(
    ("argument", "override"),
    [
        ("a.b=1", Override("a.b", "1")),
        ("+a=x=y", None),
        ("+a='x=y'", Override("a", "'x=y'", "+")),
        ("++a={b:1}", Override("a", "{b:1}", "++")),
        ("~a", Override("a", "", "~")),
        ("~a=1", Override("a", "1", "~")),
        ("a=", Override("a", "")),
        ("a=${b.c}", Override("a", "${b.c}")),
        ("a=b\\,c\\=d", Override("a", "b\\,c\\=d")),
        ('a=["x"]', Override("a", '["x"]')),
        ("actor@x.actor=megatron_actor", Override("actor@x.actor", "megatron_actor")),
        ("hydra/launcher=basic", Override("hydra/launcher", "basic")),
        ("--config-name=x", None),
        ("--nnodes", None),
        ("a", None),
        ("+a", None),
        ("=1", None),
        ("a b=1", None),
        ("", None),
        ("a=b#c", None),
        ("a=1,2", None),
        ("a=(x", None),
        ("a=é", None),
    ],
)
def test_an_argument_is_read_or_refused(argument: str, override: Override | None) -> None:
    """Arguments that hydra refuses are refused first, by name."""
    if override is None:
        with pytest.raises(MisfitError, match="AGENT_JOB_ARGS") as refusal:
            read(argument)
        assert repr(argument) in str(refusal.value)
    else:
        assert read(argument) == override
        assert override.argument() == argument


def test_a_refusal_has_the_quoted_form() -> None:
    """The quoted form can be copied."""
    with pytest.raises(MisfitError, match=re.escape("\"k='http://h/?a=b'\"")):
        read("k=http://h/?a=b")


@pytest.mark.parametrize(
    ("own", "users", "arguments"),
    [
        (["a=1", "b=2"], ["a=3"], ["a=3", "b=2"]),
        (["a=1"], ["c=3", "c=4"], ["a=1", "c=4"]),
        (["+a=1"], ["+a=2"], ["+a=2"]),
        (["+a=1"], ["a=2"], ["+a=2"]),
        (["a=1"], ["+a=2"], ["a=2"]),
        (["+a=1"], ["++a=2"], ["++a=2"]),
        (["a=1"], ["~a"], ["~a"]),
        (["+a=1"], ["~a"], []),
        (["a=1"], ["~a", "+a=2"], ["~a", "+a=2"]),
        ([], ["+a=1", "+a=2"], ["+a=2"]),
        (["a=1"], ["a.b=2"], ["a=1", "a.b=2"]),
    ],
)
def test_a_users_argument_replaces_the_recipes(
    own: list[str], users: list[str], arguments: list[str]
) -> None:
    """In its place, once, and with the prefix that the configuration needs."""
    rows = [(key, value, "why") for key, _, value in (row.partition("=") for row in own)]
    made, why = merged(rows, map(read, users))
    assert list(made) == arguments
    assert set(why) == {read(argument).key for argument in arguments}


@given(st.lists(st.tuples(KEYS, st.integers(0, 9))), st.lists(st.tuples(KEYS, st.integers(0, 9))))
def test_no_key_occurs_twice(own: list[tuple[str, int]], users: list[tuple[str, int]]) -> None:
    """Each key occurs once, with the user's last value."""
    rows = [(key.replace("++", "+"), value, "why") for key, value in own if key[0] != "~"]
    given = [read(key if key[0] == "~" else f"{key}={value}") for key, value in users]
    made = [read(argument) for argument in merged(rows, given)[0]]
    values = [override.key for override in made if override.prefix != "~"]
    assert len(values) == len(set(values))
    for override in given[-1:]:
        standing = [one for one in made if one.key == override.key and one.prefix != "~"]
        assert [one.value for one in standing] == (
            [] if override.prefix == "~" else [override.value]
        )
