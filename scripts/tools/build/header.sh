#!/bin/sh
# pod-agent in one file. This is a shell script with a zip archive behind it: __main__.py in the
# archive unpacks it once for this machine and Python, and starts the agent. `python3 FILE` works too.
for python in python3 python3.12 python3.11 python3.10 python3.13 python; do
    if command -v "$python" >/dev/null 2>&1; then
        exec "$python" -I -S "$0" "$@"
    fi
done
echo "pod-agent: no python3 on PATH. Put one of 3.10 to 3.13 on PATH, or run: /path/to/python3 $0" >&2
exit 78
