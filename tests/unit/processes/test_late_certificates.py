"""Certificates of authorities: loaded at the first connection of a context, and only then."""

from __future__ import annotations

import ssl
import subprocess
import sys

import certifi
import pytest

from agent.processes.late_certificates import certificates_at_first_use

IMPORTED = """
import ssl, sys
loads = []
real = ssl.SSLContext.set_default_verify_paths
ssl.SSLContext.set_default_verify_paths = lambda context: (loads.append(context), real(context))
import agent.run.main
assert "aiohttp" not in sys.modules
agent.run.main.load_{role}()
assert "aiohttp.connector" in sys.modules
print(len(loads))
"""


def client_hello(context: ssl.SSLContext) -> bytes:
    """Begin a connection as asyncio does; return its first message."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(incoming, outgoing, server_hostname="head.example")
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def test_a_context_verifies_by_the_default_certificates_from_its_first_connection_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then it has none; a later one loads nothing again, and other contexts are as usual."""
    monkeypatch.setenv("SSL_CERT_FILE", certifi.where())
    with certificates_at_first_use():
        late = ssl.create_default_context()
    usual = ssl.create_default_context()
    assert late.cert_store_stats()["x509_ca"] == 0
    assert usual.cert_store_stats()["x509_ca"] > 0

    assert client_hello(late)
    assert late.cert_store_stats() == usual.cert_store_stats()
    assert (late.verify_mode, late.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert client_hello(late)


@pytest.mark.parametrize("role", ["head", "worker"])
def test_a_role_starts_without_certificates(role: str) -> None:
    """Neither head nor worker loads them for aiohttp."""
    code = IMPORTED.format(role=role)
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "0\n"
