"""A stand-in for torchrun: flags, ranks, signals and messages of 2.13, static rendezvous.

    python -m torch.distributed.run --nnodes 2 --node_rank 0 … train.py ARG…

Like torch, it refuses unknown flags; rank 0 listens, and the other nodes retry until it does; ranks
are numbered across nodes of different sizes; a failed rank stops its node's other ranks; the exit
code is 1 for any code of a rank. It does no training.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

TRY_AGAIN = 0.05
MEET_WITHIN = 600.0
LOGGED = "torch/distributed/elastic/multiprocessing/api.py:1002]"


class SignalException(Exception):  # noqa: N818 - the name of torch
    """A signal requests the end."""


def main() -> None:
    """Rendezvous with the other nodes, start this node's ranks, wait for their end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, on_signal)
    asked = parse(sys.argv[1:])
    others, base, world = rendezvous(asked)
    with tempfile.TemporaryDirectory(prefix="torchelastic_") as folder:
        ranks = [start(asked, local, base, world, folder) for local in range(asked.nproc_per_node)]
        try:
            failed = first_failure(ranks, asked.monitor_interval)
        except SignalException as signaled:
            log("W", f"Received {signaled} death signal, shutting down workers")
            close(ranks)
            raise
        if failed is not None:
            end_by_failure(ranks, failed, base, folder)
    leave_together(others)


def on_signal(number: int, _frame: object) -> NoReturn:
    """Turn a signal into an exception like torch's, whose traceback ends the program with 1."""
    raise SignalException(f"Process {os.getpid()} got signal: {number}")


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the flags of torch that an agent may need."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add = parser.add_argument
    add("--nnodes", type=int, default=1)
    add("--nproc-per-node", "--nproc_per_node", type=int, default=1)
    add("--node-rank", "--node_rank", type=int, default=0)
    add("--master-addr", "--master_addr", default="127.0.0.1")
    add("--master-port", "--master_port", type=int, required=True)
    add("--rdzv-id", "--rdzv_id", default="none")
    add("--max-restarts", "--max_restarts", type=int, choices=[0], default=0)
    add("--monitor-interval", "--monitor_interval", type=float, default=0.1)
    add("-m", "--module", action="store_true")
    add("--no-python", "--no_python", action="store_true")
    add("training_script")
    add("training_script_args", nargs=argparse.REMAINDER)
    return parser.parse_args(words)


# --- the rendezvous ----------------------------------------------------------------------------


def rendezvous(asked: argparse.Namespace) -> tuple[list[socket.socket], int, int]:
    """Return the connections to the other nodes, this node's first rank, and the world size."""
    if asked.node_rank == 0:
        return gather(asked)
    line = connect(asked.master_addr.strip("[]"), asked.master_port)
    send_line(line, {"rank": asked.node_rank, "id": asked.rdzv_id, "size": asked.nproc_per_node})
    answer = read_line(line)
    return [line], answer["base"], answer["world"]


def gather(asked: argparse.Namespace) -> tuple[list[socket.socket], int, int]:
    """Listen for the other nodes, and send each its first rank."""
    family = socket.AF_INET6 if ":" in asked.master_addr else socket.AF_INET
    sizes, lines = {0: asked.nproc_per_node}, {}
    with socket.create_server(("", asked.master_port), family=family) as server:
        while len(sizes) < asked.nnodes:
            line, _ = server.accept()
            said = read_line(line)
            if said["id"] == asked.rdzv_id:
                sizes[said["rank"]], lines[said["rank"]] = said["size"], line
    for rank, line in lines.items():
        base = sum(sizes[lower] for lower in range(rank))
        send_line(line, {"base": base, "world": sum(sizes.values())})
    return list(lines.values()), 0, sum(sizes.values())


def connect(host: str, port: int) -> socket.socket:
    """Connect to rank 0, with retries until it listens."""
    until = time.monotonic() + MEET_WITHIN
    while True:
        line = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        if line.connect_ex((host, port)) == 0:
            return line
        line.close()
        if time.monotonic() >= until:
            raise TimeoutError(f"nobody listens on {host}:{port}")
        time.sleep(TRY_AGAIN)


def send_line(line: socket.socket, what: dict[str, Any]) -> None:
    """Send a line."""
    line.sendall(json.dumps(what).encode() + b"\n")


def read_line(line: socket.socket) -> dict[str, Any]:
    """Read a line."""
    with line.makefile("rb") as file:
        found = json.loads(file.readline())
    assert isinstance(found, dict)
    return found


def leave_together(others: list[socket.socket]) -> None:
    """Wait until every node's ranks have succeeded, or its torchrun is gone."""
    for line in others:
        line.shutdown(socket.SHUT_WR)
    for line in others:
        line.recv(1)


# --- the ranks ---------------------------------------------------------------------------------


def start(
    asked: argparse.Namespace, local: int, base: int, world: int, folder: str
) -> subprocess.Popen[bytes]:
    """Start a rank in its own session."""
    python = [] if asked.no_python else [sys.executable, "-u"]
    module = ["-m"] if asked.module else []
    environ = {
        **os.environ,
        "RANK": str(base + local),
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(asked.node_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(asked.nproc_per_node),
        "GROUP_WORLD_SIZE": str(asked.nnodes),
        "MASTER_ADDR": asked.master_addr,
        "MASTER_PORT": str(asked.master_port),
        "TORCHELASTIC_RUN_ID": asked.rdzv_id,
        "TORCHELASTIC_ERROR_FILE": f"{folder}/{local}.json",
    }
    words = [*python, *module, asked.training_script, *asked.training_script_args]
    return subprocess.Popen(words, env=environ, start_new_session=True)


def first_failure(ranks: list[subprocess.Popen[bytes]], step: float) -> int | None:
    """Wait until all ranks have succeeded or one has failed; return the failed one."""
    while True:
        codes = [rank.poll() for rank in ranks]
        for local, code in enumerate(codes):
            if code:
                return local
        if None not in codes:
            return None
        time.sleep(step)


def close(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Stop the ranks that still run."""
    left = [rank for rank in ranks if rank.poll() is None]
    for rank in left:
        log("W", f"Sending process {rank.pid} closing signal SIGTERM")
        rank.terminate()
    until = time.monotonic() + float(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
    while time.monotonic() < until and any(rank.poll() is None for rank in left):
        time.sleep(TRY_AGAIN)
    for rank in left:
        rank.kill()  # no effect on one that has exited
        rank.wait()


def end_by_failure(
    ranks: list[subprocess.Popen[bytes]], local: int, base: int, folder: str
) -> NoReturn:
    """Stop the other ranks, print the failed one's error, and name it."""
    close(ranks)
    failed = ranks[local]
    log(
        "E",
        f"failed (exitcode: {failed.returncode}) local_rank: {local} (pid: {failed.pid}) of "
        f"binary: {failed.args[0]!s}",  # type: ignore[index]  # started with a list
    )
    written, own = Path(folder, f"{local}.json"), os.environ.get("TORCHELASTIC_ERROR_FILE")
    if written.exists() and own:
        data = json.loads(written.read_text())
        data["message"]["errorCode"] = failed.returncode
        Path(own).write_text(json.dumps(data))
    raise RuntimeError(
        "\nRoot Cause (first observed failure):\n[0]:\n  time      : now\n  host      : here\n"
        f"  rank      : {base + local} (local_rank: {local})\n"
        f"  exitcode  : {failed.returncode} (pid: {failed.pid})\n"
    )


def log(level: str, text: str) -> None:
    """Write a line like torch's logger."""
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03}000"
    print(f"{level}{stamp} {os.getpid()} {LOGGED} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
