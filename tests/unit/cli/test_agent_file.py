"""The agent's file that nodes get: the packed wheel, and how it is found and fetched."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import subprocess
import sys
import zipfile
from email.parser import Parser
from typing import TYPE_CHECKING

import agent
from agent.cli.start_files import agent_file
from agent.cli.start_files.agent_file import AgentFile, one_file_here, packed_wheel

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_wheel_is_whole() -> None:
    """Its record has the digest of each file; metadata, templates and the command are there."""
    name, content = packed_wheel()
    assert name == f"pod_agent-{agent.__version__}-py3-none-any.whl"
    info = f"pod_agent-{agent.__version__}.dist-info"
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        files = {one: wheel.read(one) for one in wheel.namelist()}
    rows = csv.reader(io.StringIO(files[f"{info}/RECORD"].decode()))
    recorded = {row[0]: row[1] for row in rows}
    assert recorded.keys() == files.keys()
    for one, text in recorded.items():
        if one != f"{info}/RECORD":
            digest = base64.urlsafe_b64encode(hashlib.sha256(files[one]).digest())
            assert text == f"sha256={digest.decode().rstrip('=')}"
    metadata = Parser().parsestr(files[f"{info}/METADATA"].decode())
    assert metadata["Name"] == "pod-agent"
    assert any(one.startswith("ray[default]") for one in metadata.get_all("Requires-Dist", []))
    assert b"pod-agent = agent.__main__:main" in files[f"{info}/entry_points.txt"]
    assert "agent/cli/start_files/templates/dstack.yml" in files
    assert not [one for one in files if "__pycache__" in one]


def test_the_wheel_runs(tmp_path: Path) -> None:
    """Python imports the agent from it; the limit of dstack's server is far."""
    _, content = packed_wheel()
    assert len(content) < 2 << 20
    path = tmp_path / "wheel.zip"
    path.write_bytes(content)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import agent; print(agent.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, path], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(path))


def test_where_the_one_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file from which this agent was unpacked, else that of the checkout, else none."""
    package = tmp_path / "agent"
    package.mkdir()
    monkeypatch.setattr(agent_file, "PACKAGE", package)
    assert one_file_here() is None
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/build").touch()
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/pod-agent").touch()
    assert one_file_here() == tmp_path / "dist/pod-agent"
    (tmp_path / "unpacked-from").write_text(str(tmp_path / "gone"))
    assert one_file_here() == tmp_path / "dist/pod-agent"
    (tmp_path / "gone").touch()
    assert one_file_here() == tmp_path / "gone"


def test_a_fetched_file_is_verified(tmp_path: Path) -> None:
    """The right digest gives the file, another one an error and no file."""
    source = tmp_path / "published"
    source.write_bytes(b"the one file")
    place = tmp_path / "there" / "pod-agent"
    for content, code in ((b"other", 1), (b"the one file", 0)):
        digest = hashlib.sha256(content).hexdigest()
        fetched = AgentFile("one file", "pod-agent", "", url=f"file://{source}", sha256=digest)
        (command,) = fetched.commands(str(place))
        done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
        assert (done.returncode != 0) == bool(code)
        assert place.exists() == (code == 0)
    again = subprocess.run(["bash", "-c", command], check=False)
    assert again.returncode == 0
