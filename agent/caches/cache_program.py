"""`pod-agent compile-caches seed|save`: the program that reads or writes a node's archive.

A process of its own, since a volume may hang: its work is in a child, which it leaves behind at the
deadline. It ends with 0 whatever the volume does; its last line says what came of it.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from agent.base import times
from agent.base.errors import AgentError
from agent.base.text import error_text
from agent.caches.cache_archive import Trust
from agent.caches.cache_folder import CachePlace
from agent.caches.cache_store import save, seed
from agent.job.compile_caches import SEAL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_REFUSED = 78
_LONGEST = 4096


def main(argv: Sequence[str]) -> int:
    """Seed or save; return 0, or 78 if the node's folder is not this user's own."""
    parser = argparse.ArgumentParser(prog="pod-agent compile-caches", description=__doc__)
    parser.add_argument("action", choices=("seed", "save"))
    parser.add_argument("--volume", required=True, help="folder of the archives")
    parser.add_argument("--folder", required=True, help="the node's cache folder")
    parser.add_argument("--archive", required=True, help="file name of this kind's archive")
    parser.add_argument("--kind", required=True, help="digest of this kind of node")
    parser.add_argument("--packages", action="append", default=[], help="folder of packages")
    parser.add_argument("--run", default="", help="id of the run that saves")
    parser.add_argument("--node", default="", help="name of the node that saves")
    parser.add_argument("--settled", type=float, help="seconds without a change, after a failure")
    parser.add_argument("--limit", type=float, default=times.CACHES_SEED, help="seconds")
    asked = parser.parse_args(argv)

    packages = tuple(asked.packages)
    place = CachePlace(asked.volume, asked.folder, asked.archive, asked.kind, packages)
    trust = Trust(os.environ.get(SEAL, ""), os.getuid())
    if asked.action == "seed":
        late = f"cold: {asked.volume} took longer than {asked.limit:g} s"

        def seed_here(send: Callable[[str], None]) -> str:
            return seed(place, trust, lambda seeded: send(seeded.in_words())).in_words()

        return in_child(seed_here, asked.limit, late)
    late = f"not written back: {asked.volume} took longer than {asked.limit:g} s"

    def save_quietly(_send: Callable[[str], None]) -> str:
        _take_least_priority()
        return save(place, trust, asked.run, asked.node, asked.settled)

    return in_child(save_quietly, asked.limit, late)


def _take_least_priority() -> None:
    """Leave CPUs and disks to the job."""
    os.nice(19)
    with suppress(psutil.Error, OSError):  # some containers forbid it
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def in_child(act: Callable[[Callable[[str], None]], str], limit: float, late: str) -> int:
    """Print what a child returns within `limit` seconds, or `late`; return the exit code.

    It may send that earlier, and go on: nobody waits for it then. Nor does anybody for a child that
    a hung disk holds, which cannot be killed before the disk answers.
    """
    # The child acts, and sends its code and its sentence.
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 0
        is_sent = False

        def send(sentence: str) -> None:
            nonlocal is_sent
            if not is_sent:
                is_sent = True
                os.write(writing, bytes([code]) + sentence.encode(errors="replace")[:_LONGEST])

        try:
            sentence = act(send)
        except AgentError as error:
            code = _REFUSED
            sentence = error.sentence()
        except OSError as error:
            sentence = f"cold: {error_text(error)}"
        except Exception as error:  # noqa: BLE001 - a bug here must not cost the run
            sentence = f"cold: {type(error).__name__}: {error}"
        send(sentence)
        os._exit(0)

    # The parent: a request to stop ends the child, too.
    os.close(writing)

    def stop(signum: int, _frame: object) -> None:
        os.kill(child, signal.SIGKILL)
        os._exit(128 + signum)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)

    # What does the child send before the deadline, if anything?
    ready, _, _ = select.select([reading], [], [], limit)
    answer = os.read(reading, _LONGEST + 1) if ready else b""
    if not answer:
        os.kill(child, signal.SIGKILL)
        print("its program was killed" if ready else late, flush=True)
        return 0
    print(answer[1:].decode(errors="ignore"), flush=True)  # it may be cut amid a character
    return answer[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
