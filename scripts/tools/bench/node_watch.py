"""Report when nodes join and leave Ray: argv is the address of GCS.

Runs in a pod; prints a line for each new node: its address, and time.monotonic(), which all pods
share. After the nodes that already exist it prints a marker.
"""

from __future__ import annotations

import sys
import time

STEP = 0.05


def main(gcs: str) -> None:
    """Poll without end."""
    from ray._raylet import GcsClient  # noqa: PLC0415 - outside of a pod nobody needs it

    client, known, is_watching = GcsClient(address=gcs), set(), False
    while True:
        infos = client.get_all_node_info(timeout=5).items()
        for node, info in infos:
            if info.state == 0 and node not in known:
                known.add(node)
                print(info.node_manager_address, time.monotonic(), flush=True)
        if not is_watching:
            print("watching", time.monotonic(), flush=True)
        is_watching = True
        time.sleep(STEP)


if __name__ == "__main__":
    main(sys.argv[1])
