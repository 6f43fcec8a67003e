"""`huggingface_hub` fetches a model from a stand-in hub: once, resumed, or refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from agent.base.text import own_command
from agent.node.read import cached_model
from support import hub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def client() -> Path:
    """Return the folder with the real `huggingface_hub` client."""
    try:
        return hub.client()
    except (OSError, subprocess.SubprocessError) as problem:
        pytest.skip(f"huggingface_hub cannot be installed here: {problem}")


@pytest.fixture
def server() -> Iterator[hub.Hub]:
    """Start a hub with one model."""
    with hub.Hub() as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def fetch(
    client: Path, home: Path, endpoint: str, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Fetch a model as a prepare step does."""
    env = {**hub.environment(home, endpoint), "PYTHONPATH": str(client), **more}
    argv = own_command(sys.executable, "fetch-model", *(words or (hub.MODEL,)))
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=90, check=False)


def weights(home: Path, commit: str = hub.COMMIT) -> list[str]:
    """List the model's files in the cache."""
    snapshot = next((home / "hub").glob(f"models--*/snapshots/{commit}"))
    return sorted(str(p.relative_to(snapshot)) for p in snapshot.rglob("*") if p.is_file())


def test_a_model_is_fetched_once(client: Path, server: hub.Hub, tmp_path: Path) -> None:
    """Fetches only needed files; a second fetch, also with HF_HUB_OFFLINE, uses the cache."""
    done = fetch(client, tmp_path, server.url)
    assert done.returncode == 0, done.stderr
    assert f"{hub.MODEL} is in {tmp_path}" in done.stdout
    assert weights(tmp_path) == ["README.md", "config.json", "model.safetensors"]
    loaded = [line for line in server.asked if line.startswith("GET") and "/resolve/" in line]
    assert len(loaded) == 3
    assert fetch(client, tmp_path, server.url).returncode == 0
    again = [line for line in server.asked if line.startswith("GET") and "/resolve/" in line]
    assert again == loaded
    offline = fetch(client, tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr


@pytest.mark.parametrize("revision", ["v1", hub.OLDER], ids=["tag", "commit"])
def test_a_revision(client: Path, server: hub.Hub, tmp_path: Path, revision: str) -> None:
    """That commit is fetched and named; pickles are taken only where there is nothing else."""
    done = fetch(client, tmp_path, server.url, hub.MODEL, "--revision", revision)
    assert done.returncode == 0, done.stderr
    assert "has no safetensors: its weights run code when they are loaded" in done.stdout
    assert done.stdout.rstrip().endswith(f": commit {hub.OLDER}")
    assert weights(tmp_path, hub.OLDER) == ["config.json", "pytorch_model.bin"]
    environ = {"HF_HOME": str(tmp_path)}
    found = cached_model(hub.MODEL, environ, revision)
    assert found is not None
    assert found.name == hub.OLDER
    assert cached_model(hub.MODEL, environ) is None
    offline = fetch(
        *(client, tmp_path, "http://127.0.0.1:9", hub.MODEL, "--revision", revision),
        HF_HUB_OFFLINE="1",
    )
    assert offline.returncode == 0, offline.stderr


def test_an_interrupted_fetch_resumes(client: Path, server: hub.Hub, tmp_path: Path) -> None:
    """A download that breaks off halfway resumes at that byte."""
    server.breaks = 1
    done = fetch(client, tmp_path, server.url)
    assert done.returncode == 0, done.stderr
    assert f"RANGE model.safetensors from {10 << 20}" in server.asked
    assert "model.safetensors" in weights(tmp_path)


def test_a_busy_hub_is_retried(client: Path, server: hub.Hub, tmp_path: Path) -> None:
    """A 503 is retried until the hub answers."""
    server.busy = 1
    done = fetch(client, tmp_path, server.url)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("asked", "offline", "words"),
    [
        ("acme/none", "0", "has no such model, or HF_TOKEN"),
        ("acme/gated", "0", "the model is gated: accept its terms on"),
        (hub.MODEL, "1", "and HF_HUB_OFFLINE prevents the download"),
        ("not//an id", "0", "it is no id of a model: set one such as"),
        (f"{hub.MODEL} --revision=v2", "0", "no such revision of it: check AGENT_MODEL_REVISION"),
    ],
    ids=["missing", "gated", "offline", "no id", "revision"],
)
def test_an_impossible_fetch_fails_at_once(  # noqa: PLR0913 - three fixtures and a row
    client: Path, server: hub.Hub, tmp_path: Path, asked: str, offline: str, words: str
) -> None:
    """The last line names the model and the remedy; nothing is retried."""
    model, *options = asked.split(" --", 1)
    flags = [f"--{option}" for option in options]
    done = fetch(client, tmp_path, server.url, model, *flags, HF_HUB_OFFLINE=offline)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"{model}: ")
    assert words in last
    assert "trying again" not in done.stderr
    assert "Traceback" not in done.stderr
