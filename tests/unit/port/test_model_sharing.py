"""A model from node to node: checked, resumed, and from another node after a failure."""

from __future__ import annotations

import fcntl
import threading
import time
from typing import TYPE_CHECKING, BinaryIO

import pytest

from agent.base import times
from agent.job.model_sharing import KEY_VARIABLE, key_of
from agent.port import model_pull
from agent.port.model_pull import (
    ModelPull,
    ModelSource,
    PullError,
    WeightFile,
    find_sources,
    hub_token,
    weights_among,
)
from agent.port.model_server import ARRIVING, Chain
from support.free_ports import free_port
from support.model_nodes import KEY, node_of, serving, weights
from support.worlds import settings_of

if TYPE_CHECKING:
    from pathlib import Path

    from support.model_nodes import ModelNode


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {
        "MODEL_STALLED": 1.5,
        "MODEL_ASKED": 0.05,
        "MODEL_POLL": 0.05,
        "MODEL_HEAD": 0.3,
    }.items():
        monkeypatch.setattr(times, name, seconds)


def give(node: ModelNode, data: dict[WeightFile, bytes]) -> None:
    """Put files into a node's cache."""
    for file, content in data.items():
        (node.blobs / file.digest).write_bytes(content)


@pytest.mark.parametrize("key", [None, KEY])
def test_files_come_from_another_node(tmp_path: Path, key: str | None) -> None:
    """All of them, with their digests as names; nothing else stays behind."""
    data = weights()
    head = node_of(tmp_path, "127.0.0.1")
    worker = node_of(tmp_path, "127.0.0.2")
    give(head, data)
    port = free_port()
    with serving(head, port, key):
        pulling = ModelPull([*data], worker.folder, port, key)
        assert pulling.run(["127.0.0.1"]) == []
    assert {path.name for path in worker.blobs.iterdir()} == {file.digest for file in data}
    assert all((worker.blobs / f.digest).read_bytes() == content for f, content in data.items())
    assert pulling.taken == sum(file.size for file in data)


def _await_size(file: Path, size: int) -> None:
    """Wait until a file has so many bytes; it gets another name once it is complete."""
    deadline = time.monotonic() + 20
    while not file.exists() or file.stat().st_size < size:
        if (file.parent / file.name.removesuffix(ARRIVING)).exists():
            return
        assert time.monotonic() < deadline, "it does not arrive"
        time.sleep(0.02)


def test_a_chain_passes_on_what_still_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node sends while it receives: the last one has each part before the next is there."""
    monkeypatch.setattr(times, "MODEL_STALLED", 20.0)
    data = weights(2)
    nodes = [node_of(tmp_path, f"127.0.0.{n}") for n in (1, 2, 3)]
    port = free_port()
    pulls = [ModelPull([*data], node.folder, port, None) for node in nodes[1:]]
    left: list[list[WeightFile]] = []
    with serving(nodes[0], port), serving(nodes[1], port), serving(nodes[2], port):
        threads = [
            threading.Thread(target=lambda p=p, s=s: left.append(p.run([s.address])))
            for p, s in zip(pulls, nodes, strict=False)
        ]
        for thread in threads:
            thread.start()

        # The first node gets its files bit by bit, as from another node.
        for file, content in data.items():
            part = nodes[0].blobs / f"{file.digest}{ARRIVING}"
            for at in range(0, file.size, 100_000):
                with part.open("ab") as out:
                    out.write(content[at : at + 100_000])
                _await_size(nodes[2].blobs / part.name, at + 100_000)
            part.replace(nodes[0].blobs / file.digest)
        for thread in threads:
            thread.join(20)
    assert left == [[], []]
    assert nodes[2].digests() == {file.digest for file in data}


def test_a_partial_file_is_resumed(tmp_path: Path) -> None:
    """Only what is missing is sent."""
    data = weights(1)
    [(file, content)] = data.items()
    head = node_of(tmp_path, "127.0.0.1")
    worker = node_of(tmp_path, "127.0.0.2")
    give(head, data)
    (worker.blobs / f"{file.digest}{ARRIVING}").write_bytes(content[:200_000])
    port = free_port()
    with serving(head, port):
        pulling = ModelPull([file], worker.folder, port, None)
        assert pulling.run(["127.0.0.1"]) == []
    assert pulling.taken == file.size - 200_000


def test_a_file_that_another_process_takes_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs on one node: the second leaves the file to the hub, and the first gets it whole."""
    monkeypatch.setattr(times, "MODEL_STALLED", 20.0)
    data = weights(1)
    [(file, content)] = data.items()
    head = node_of(tmp_path, "127.0.0.1")
    worker = node_of(tmp_path, "127.0.0.2")
    source = head.blobs / f"{file.digest}{ARRIVING}"
    source.write_bytes(content[:100_000])
    part = worker.blobs / source.name
    port = free_port()
    left: list[list[WeightFile]] = []
    with serving(head, port):
        first = ModelPull([file], worker.folder, port, None)
        thread = threading.Thread(target=lambda: left.append(first.run(["127.0.0.1"])))
        thread.start()
        _await_size(part, 100_000)
        assert ModelPull([file], worker.folder, port, None).run(["127.0.0.1"]) == [file]
        assert part.exists()
        with source.open("ab") as out:
            out.write(content[100_000:])
        source.replace(head.blobs / file.digest)
        thread.join(20)
    assert left == [[]]
    assert worker.digests() == {file.digest}


def test_a_file_that_another_process_has_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Opened before its last byte came, and locked after it got its place: it is there."""
    data = weights(1)
    [(file, content)] = data.items()
    worker = node_of(tmp_path, "127.0.0.2")
    part = worker.blobs / f"{file.digest}{ARRIVING}"
    part.write_bytes(content)
    flock = fcntl.flock

    def late(out: BinaryIO, how: int) -> None:
        part.replace(worker.blobs / file.digest)
        flock(out, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert ModelPull([file], worker.folder, free_port(), None).run(["127.0.0.1"]) == []
    assert worker.digests() == {file.digest}
    assert capsys.readouterr().out == ""


def test_other_bytes_are_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with another digest than the hub's is removed; the next source is asked."""
    data = weights(1)
    [(file, content)] = data.items()
    liar = node_of(tmp_path, "127.0.0.2")
    give(liar, {file: content[::-1]})
    head = node_of(tmp_path, "127.0.0.1")
    give(head, data)
    worker = node_of(tmp_path, "127.0.0.3")
    port = free_port()
    with serving(head, port), serving(liar, port):
        pulling = ModelPull([file], worker.folder, port, None)
        assert pulling.run(["127.0.0.2"]) == [file]
        assert [*worker.blobs.iterdir()] == []
        assert pulling.run(["127.0.0.2", "127.0.0.1"]) == []
    assert "from 127.0.0.2: model-00001-of-00001.safetensors has another digest" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("fault", ["no server", "no file", "stalled", "dies"])
def test_a_source_that_fails_is_replaced(tmp_path: Path, fault: str) -> None:
    """By the next; what it sent before is kept."""
    data = weights(2)
    first = node_of(tmp_path, "127.0.0.2")
    head = node_of(tmp_path, "127.0.0.1")
    give(head, data)
    worker = node_of(tmp_path, "127.0.0.3")
    port = free_port()
    file = next(iter(data))
    if fault in {"stalled", "dies"}:
        (first.blobs / f"{file.digest}{ARRIVING}").write_bytes(data[file][:100_000])
    pulling = ModelPull([*data], worker.folder, port, None)
    with serving(head, port):
        if fault == "no server":
            assert pulling.run(["127.0.0.2", "127.0.0.1"]) == []
            return
        with serving(first, port) as server:
            if fault == "dies":
                threading.Timer(0.5, server.over.set).start()
            assert pulling.run(["127.0.0.2", "127.0.0.1"]) == []
    assert pulling.taken == sum(file.size for file in data)


@pytest.mark.parametrize("has_folder", [True, False])
def test_all_sources_fail(tmp_path: Path, *, has_folder: bool) -> None:
    """The files are left to the hub's client, and the program does not wait for ever."""
    data = weights(1)
    worker = node_of(tmp_path, "127.0.0.3")
    head = node_of(tmp_path, "127.0.0.1")
    if not has_folder:  # the head's fetch has not begun
        head.blobs.rmdir()
    port = free_port()
    began = time.monotonic()
    with serving(head, port):
        assert ModelPull([*data], worker.folder, port, None).run(["127.0.0.1"]) == [*data]
    assert time.monotonic() - began > times.MODEL_STALLED
    assert [*worker.blobs.iterdir()] == []


def test_a_source_that_takes_the_file_from_the_hub_after_all(tmp_path: Path) -> None:
    """Who follows its partial file gets the rest from the complete one."""
    data = weights(1)
    [(file, content)] = data.items()
    source = node_of(tmp_path, "127.0.0.1")
    worker = node_of(tmp_path, "127.0.0.2")
    part = source.blobs / f"{file.digest}{ARRIVING}"
    part.write_bytes(content[:100_000])

    def complete() -> None:
        (source.blobs / "new").write_bytes(content)
        (source.blobs / "new").replace(source.blobs / file.digest)
        part.unlink()

    threading.Timer(0.5, complete).start()
    port = free_port()
    with serving(source, port):
        assert ModelPull([file], worker.folder, port, None).run(["127.0.0.1"]) == []


@pytest.mark.parametrize(
    ("theirs", "ours", "for_all", "why"),
    [
        (KEY, None, True, "asks for another RAY_AUTH_TOKEN"),
        (KEY, "another", True, "asks for another RAY_AUTH_TOKEN"),
        (None, KEY, True, "does not prove"),
        (None, None, False, "answered 403: .*without RAY_AUTH_TOKEN only models of everybody"),
    ],
)
def test_strangers_get_nothing(
    tmp_path: Path, theirs: str | None, ours: str | None, why: str, *, for_all: bool
) -> None:
    """Neither files nor sources: with a token without its proof, without one no gated model."""
    head = node_of(tmp_path, "127.0.0.1")
    give(head, weights(1))
    port = free_port()
    with serving(head, port, theirs, is_for_all=for_all), pytest.raises(PullError, match=why):
        find_sources("127.0.0.1", port, ours)


@pytest.mark.parametrize("path", ["/files/..%2F..%2Frefs", "/files/abc", "/files/" + "A" * 64])
def test_only_digests_are_paths(tmp_path: Path, path: str) -> None:
    """A link in the cache is not followed either."""
    head = node_of(tmp_path, "127.0.0.1")
    (head.blobs / ("b" * 64)).symlink_to("/etc/passwd")
    port = free_port()
    with serving(head, port):
        assert ModelSource("127.0.0.1", port, None).get(path).status == 400
        linked = ModelSource("127.0.0.1", port, None).get("/files/" + "b" * 64)
        assert linked.status != 200


def test_the_chain() -> None:
    """Each node has those before it, the nearest first; asked again it keeps its place."""
    chain = Chain()
    asked = [chain.sources_of(f"10.0.0.{n}") for n in range(1, 7)]
    assert asked[:3] == [[], ["10.0.0.1"], ["10.0.0.2", "10.0.0.1"]]
    assert asked[5] == ["10.0.0.5", "10.0.0.4", "10.0.0.3", "10.0.0.2"]
    assert chain.sources_of("10.0.0.2") == ["10.0.0.1"]


def test_no_head(tmp_path: Path) -> None:
    """A head without a model server is waited for, a while."""
    del tmp_path
    with pytest.raises(PullError, match=r"no model server at 127\.0\.0\.1, port"):
        find_sources("127.0.0.1", free_port(), None)


def test_which_files_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The safetensors of the model's own folder, by their digests; small ones are not worth it."""
    monkeypatch.setattr(model_pull, "LEAST", 100)
    good = "a" * 64
    rows: list[dict[str, object]] = [
        {"rfilename": "b.safetensors", "size": 200, "lfs": {"sha256": good, "size": 200}},
        {"rfilename": "a.safetensors", "size": 300, "lfs": {"sha256": good, "size": 300}},
        {"rfilename": "small.safetensors", "lfs": {"sha256": good, "size": 9}},
        {"rfilename": "original/a.safetensors", "lfs": {"sha256": good, "size": 200}},
        {"rfilename": "a.bin", "lfs": {"sha256": good, "size": 200}},
        {"rfilename": "x.safetensors", "lfs": {"sha256": "../../x", "size": 200}},
        {"rfilename": "config.json", "size": 200},
    ]
    assert [file.name for file in weights_among(rows)] == ["a.safetensors", "b.safetensors"]


def test_the_hubs_token(tmp_path: Path) -> None:
    """Where the hub's own library looks for it."""
    assert hub_token({"HF_TOKEN": " t ", "HF_HOME": str(tmp_path)}) == "t"
    assert hub_token({"HF_HOME": str(tmp_path)}) is None
    (tmp_path / "token").write_text("stored\n")
    assert hub_token({"HF_HOME": str(tmp_path)}) == "stored"


def test_the_key_is_made_of_the_token() -> None:
    """It does not show the token; without one there is none."""
    assert key_of(settings_of({})) == {}
    token = "0123456789abcdef" * 2
    [(name, key)] = key_of(settings_of({"RAY_AUTH_TOKEN": token})).items()
    assert (name, len(key)) == (KEY_VARIABLE, 64)
    assert token not in key
