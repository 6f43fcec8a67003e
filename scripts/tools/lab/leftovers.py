"""Remove the leftovers of labs whose creators were killed before they could clean up."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

from tools.lab.lab import OWNER, PREFIX, STATE_DIR, remove_folder, start_time
from tools.lab.network import ETC_DIR, NETNS_DIR, forget_netns_mount, ip, remove_netns
from tools.lab.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

LAB_ID = re.compile(rf"({PREFIX}-(\d+)-\d+)(?:-.*)?")
END_TIMEOUT = 10.0


def creator_of(name: str) -> tuple[str, int] | None:
    """Parse a lab's ID and its creator's PID from the name of one of its objects."""
    match = LAB_ID.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def is_dead(lab_id: str, pid: int) -> bool:
    """Return whether a lab's creator is gone; another process may have its PID by now."""
    try:
        now = start_time(pid)
    except (FileNotFoundError, ProcessLookupError):
        return True
    owner = STATE_DIR / lab_id / OWNER
    then = owner.read_text() if owner.exists() else ""
    return then not in {"", now}


def clean() -> list[str]:
    """Remove the leftovers of dead creators; return the IDs of their labs."""
    places = [place for place in (NETNS_DIR, ETC_DIR, STATE_DIR) if place.is_dir()]
    made = {creator_of(entry.name) for place in places for entry in place.iterdir()}
    dead = sorted(found[0] for found in made if found and is_dead(*found))
    for lab_id in dead:
        _remove(lab_id)
    if dead:
        forget_netns_mount()
    return dead


def _remove(lab_id: str) -> None:
    for place in (NETNS_DIR, ETC_DIR):
        for entry in sorted(place.glob(f"{lab_id}-*")):
            _end_processes(entry.name)
            remove_netns(entry.name)
    remove_folder(STATE_DIR / lab_id)


def _end_processes(netns: str) -> None:
    """Kill the remaining processes in a dead lab's namespace, which has no others."""
    if not (NETNS_DIR / netns).exists():
        return

    def all_gone() -> bool:
        pids = [int(word) for word in ip("netns", "pids", netns).split()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return not pids

    until(all_gone, END_TIMEOUT, f"end of the processes in {netns}")


def is_left(lab_id: str) -> list[Path]:
    """List the remaining objects of a lab."""
    return [
        entry
        for place in (NETNS_DIR, ETC_DIR, STATE_DIR)
        for entry in (*place.glob(lab_id), *place.glob(f"{lab_id}-*"))
    ]
