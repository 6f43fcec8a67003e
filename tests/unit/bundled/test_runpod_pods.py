"""RunPod's pods: the agent's file is sent to each that waits for it, and to no other."""

from __future__ import annotations

import hashlib
import http.client
import io
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import agent
from support.conditions import await_true
from support.example_table import make_pods
from support.free_ports import free_port
from support.runpod_server import RunPodServer, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes

PROGRAM = Path(agent.__file__).parent / "bundled" / "runpod_receive.py"
CONTENT = b"the wheel of the agent"


@contextmanager
def receiver(
    target: Path, *more: tuple[bytes, Path]
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run the program as a pod's command does: by its text."""
    port = free_port()
    text = PROGRAM.read_text(encoding="utf-8")
    argv = [sys.executable, "-c", text, str(port)]
    for content, place in ((CONTENT, target), *more):
        argv += [str(len(content)), hashlib.sha256(content).hexdigest(), str(place)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "waiting for the agent" in process.stdout.readline()
            yield port, process
        finally:
            process.kill()


def put(port: int, content: bytes) -> int:
    """Send a content to the receiver; return the status of its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("PUT", "/", content)
        return connection.getresponse().status
    finally:
        connection.close()


def test_only_the_right_file_is_taken(tmp_path: Path) -> None:
    """Another content, another length and another method are refused; the file ends the wait."""
    target = tmp_path / "pod-agent" / "abc" / "agent.whl"
    with receiver(target) as (port, process):
        assert put(port, b"x" * len(CONTENT)) == 403
        assert put(port, CONTENT + b"x") == 403
        assert put(port, b"") == 403
        assert process.poll() is None
        assert [*target.parent.iterdir()] == []
        assert put(port, CONTENT) == 201
        assert process.wait(timeout=30) == 0
    assert target.read_bytes() == CONTENT
    assert [*target.parent.iterdir()] == [target]


def test_a_file_that_another_pod_took_ends_the_wait(tmp_path: Path) -> None:
    """Pods that share a volume need the file once."""
    target = tmp_path / "agent.whl"
    with receiver(target) as (_, process):
        target.write_bytes(CONTENT)
        assert process.wait(timeout=30) == 0


def test_pods_get_the_file_when_they_are_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod that does not listen yet is asked again, until it took the file."""
    script = make_pods()
    (tmp_path / "pod_agent-0.1.0-py3-none-any.whl").write_bytes(CONTENT)
    monkeypatch.setattr(script, "HERE", tmp_path)
    monkeypatch.setattr(script, "PROXY", "http://127.0.0.1:{pod}")
    monkeypatch.setattr(script, "PAUSE", 0.05)
    monkeypatch.setattr(script, "PATIENCE", 0.2)
    assert script.send_to_all([str(free_port())]) == 1
    assert "not sent to" in capsys.readouterr().err
    monkeypatch.setattr(script, "PATIENCE", 60.0)
    with receiver(tmp_path / "a") as (first, _), receiver(tmp_path / "b") as (second, _):
        assert script.send_to_all([str(first), str(second)]) == 0
        await_true(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists())
    printed = capsys.readouterr().out
    assert f"pod {first} has the agent" in printed


def test_the_code_is_sent_with_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is packed anew first; a pod's variables say which archive it takes, and no other."""
    script = make_pods()
    folder = tmp_path / "start"
    folder.mkdir()
    monkeypatch.setattr(script, "HERE", folder)
    assert script.pack_code()
    assert script.with_code({"A": "1"}) == {"A": "1"}

    packer = "import pathlib; pathlib.Path(__file__).with_name('code.tar.gz').write_text('new')"
    (folder / "pack.py").write_text(packer)
    (folder / "code.tar.gz").write_text("old")
    (folder / "pod_agent-0.1.0-py3-none-any.whl").write_bytes(CONTENT)
    assert script.pack_code()
    digest = hashlib.sha256(b"new").hexdigest()
    assert script.with_code({"A": "1"}) == {"A": "1", "CODE_SIZE": "3", "CODE_SHA256": digest}
    monkeypatch.setattr(script, "PROXY", "http://127.0.0.1:{pod}")
    monkeypatch.setattr(script, "PAUSE", 0.05)
    code = tmp_path / "kept" / "code.tar.gz"
    with receiver(tmp_path / "a", (b"new", code)) as (port, process):
        assert put(port, b"old") == 403
        assert script.send_to_all([str(port)]) == 0
        assert process.wait(timeout=30) == 0
    assert code.read_bytes() == b"new"
    assert "sending code.tar.gz" in capsys.readouterr().out

    (folder / "pack.py").write_text("raise SystemExit(1)")
    assert not script.pack_code()


def test_nothing_is_sent_where_pods_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file beside it, pods.py is done when the pods are made."""
    script = make_pods()
    monkeypatch.setattr(script, "HERE", tmp_path)
    assert script.send_to_all(["pod"]) == 0


def test_a_clusters_pods_are_named_by_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RunPod names the pods of a new cluster one after another; all get the file."""
    script = make_pods()
    (tmp_path / "instant-cluster.json").write_text('{"compute": {"podCount": 2}}')
    answers: list[dict[str, object]] = [
        {"id": "c"},
        {"pods": [{"id": "b", "cluster": {"rank": 1}}]},
        {"pods": [{"id": "b", "cluster": {"rank": 1}}, {"id": "a", "cluster": {"rank": 0}}]},
    ]
    asked: list[str] = []

    def call(method: str, path: str, _body: object = None) -> dict[str, object]:
        asked.append(f"{method} {path}")
        return dict(answers[len(asked) - 1])

    monkeypatch.setattr(script, "HERE", tmp_path)
    monkeypatch.setattr(script, "PAUSE", 0.01)
    monkeypatch.setattr(script, "call", call)
    assert script.make_cluster() == ["a", "b"]
    assert asked == ["POST clusters", "GET clusters/c/pods", "GET clusters/c/pods"]


def test_missing_secrets_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new token is kept beside; others are variables; what exists stays; a refusal says why."""
    script = make_pods()
    account = RunPodServer("key", {}, secrets={"hf_token": "theirs"})
    server = serve(account)
    monkeypatch.setattr(script, "HERE", tmp_path)
    monkeypatch.setattr(script, "GRAPHQL", f"{account.url}/graphql")
    monkeypatch.setenv("RUNPOD_API_KEY", "key")
    names = ("ray_auth_token", "runpod_api_key", "hf_token")
    request = " ".join(f"{{{{ RUNPOD_SECRET_{name} }}}}" for name in names)
    script.make_secrets(request)
    kept = (tmp_path / "token.env").read_text()
    token = account.secrets["ray_auth_token"]
    assert kept == f"RAY_AUTH_TOKEN={token}\n"
    assert (tmp_path / "token.env").stat().st_mode & 0o777 == 0o600
    assert account.secrets == {"hf_token": "theirs", "runpod_api_key": "key", names[0]: token}
    script.make_secrets(request)
    assert account.secrets["ray_auth_token"] == token
    assert token not in capsys.readouterr().out

    # What is missing is named, and so is the way by hand.
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(script.NotMadeError, match="WANDB_API_KEY is not set"):
        script.make_secrets("{{ RUNPOD_SECRET_wandb_api_key }}")
    account.rights = False
    monkeypatch.setenv("WANDB_API_KEY", "w")
    with pytest.raises(script.NotMadeError, match=r"lacks the right.*pods\.py --no-secrets"):
        script.make_secrets("{{ RUNPOD_SECRET_wandb_api_key }}")
    server.shutdown()
    server.server_close()
