"""What a limit for one address counts by."""

from __future__ import annotations

import pytest

from agent.base.text import quota_key


@pytest.mark.parametrize(
    ("ip", "key"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:0:1::5", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::5", "2001:db8:0:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", ""),
        ("a:b", "a:b"),
    ],
)
def test_an_ipv6_host_counts_with_its_network(ip: str, key: str) -> None:
    """It may use any address of its /64."""
    assert quota_key(ip) == key
