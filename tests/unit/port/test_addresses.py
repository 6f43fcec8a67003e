"""Addresses in messages: an IP address and nothing else, for what reads the message's types."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.text import is_ip
from agent.base.value import Address, OptionalAddress

SPELLINGS = st.ip_addresses().flatmap(
    lambda ip: st.sampled_from([str(ip), ip.exploded, ip.exploded.upper()])
)
SIGNS = st.text(":::::.01afF9%g\n", max_size=24)
GROUPS = st.lists(st.sampled_from(["", "0", "1", "ffff", "00001", "g"]), max_size=10).map(":".join)
BYTES = st.lists(st.sampled_from(["0", "1", "01", "99", "255", "256"]), max_size=6).map(".".join)


def is_address(text: str, kind: object = Address) -> bool:
    """Return whether a message may have this text as an address."""
    try:
        msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return False
    return True


@given(SPELLINGS | SIGNS | GROUPS | BYTES)
def test_an_address_is_what_the_standard_library_reads(text: str) -> None:
    """In any spelling, apart from IPv4 addresses written within IPv6."""
    assert is_address(text) == (is_ip(text) and not (":" in text and "." in text))


@pytest.mark.parametrize(
    "text",
    [
        "fe80::1%eth0",
        "::1%$(id>/tmp/x)",
        "x$(id)",
        "10.0.0.2/latest",
        "10.0.0.2\n",
        "127.0.0.77:80",
    ],
)
def test_what_is_no_address(text: str) -> None:
    """A scope id may be any text, and nothing may follow an address."""
    assert not is_address(text)
    assert not is_address(text, OptionalAddress)
    assert not is_ip(text)


def test_no_address() -> None:
    """Only an optional one may be missing."""
    assert is_address("", OptionalAddress)
    assert not is_address("")
