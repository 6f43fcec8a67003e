"""Small stand-ins for what a start file installs and clones: wheels and repositories.

pip finds the wheels by PIP_FIND_LINKS, git the repositories by its own `insteadOf`; so the commands
of a start file run as written, without a network.
"""

from __future__ import annotations

import subprocess
import sysconfig
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from agent.cli.start_files.request import preset_of
from agent.cli.start_files.slurm_files import AMD_TAG
from support import stand_in_frameworks
from support.scenario import ENVIRONMENT, ray_in_pods

if TYPE_CHECKING:
    from collections.abc import Mapping

GSM8K = """\
import sys
from pathlib import Path

folder = Path(sys.argv[sys.argv.index("--local_save_dir") + 1]).expanduser()
folder.mkdir(parents=True, exist_ok=True)
for name in ("train", "test"):
    (folder / f"{name}.parquet").write_bytes(b"questions")
print("made", folder)
"""
"""verl's program that makes the data, with the option that start files give."""

ONE_FILE = b"stands for the one file" + b"PK\5\6" + bytes(18)
"""A file that is an empty archive, as far as `init` looks."""


def framework(folder: Path, name: str, version: str = "") -> Path:
    """Write the packages of a framework's stand-in, which need nothing else; return the folder."""
    stand_in_frameworks.install(folder, name, version)
    own = Path(stand_in_frameworks.__file__)
    (folder / "support").mkdir()
    (folder / "support" / own.name).write_bytes(own.read_bytes())
    return folder


def wheel(
    index: Path, release: str, files: Mapping[str, bytes], extra: str, command: str = ""
) -> None:
    """Write the wheel of a release, NAME-VERSION; `command` is a script, NAME = MODULE:FUNCTION."""
    name, _, version = release.partition("-")
    info = f"{release}.dist-info"
    members = dict(files)
    members[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nProvides-Extra: {extra}\n"
    ).encode()
    members[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    if command:
        members[f"{info}/entry_points.txt"] = f"[console_scripts]\n{command}\n".encode()
    record = "".join(f"{path},,\n" for path in (*members, f"{info}/RECORD"))
    index.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(index / f"{release}-py3-none-any.whl", "w") as archive:
        for path, content in {**members, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(path, content)


def ray_wheel(index: Path) -> None:
    """Write a wheel that leads to the lab's Ray, which is too large to be installed again."""
    place = {"base": str(ENVIRONMENT), "platbase": str(ENVIRONMENT)}
    packages = sysconfig.get_path("purelib", vars=place).encode()
    command = "ray = ray.scripts.scripts:main"
    wheel(index, f"ray-{ray_in_pods()}", {"labs_ray.pth": packages}, "default", command)


def framework_wheel(index: Path, name: str, version: str, extra: str) -> None:
    """Write a wheel of a framework's stand-in."""
    place = framework(index / name, name)
    paths = [path for path in place.rglob("*") if path.is_file()]
    files = {str(path.relative_to(place)): path.read_bytes() for path in paths}
    wheel(index, f"{name}-{version}", files, extra)


def index_variables(index: str) -> dict[str, str]:
    """Return the variables by which pip takes this folder for its index."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": index}


def verl_repository(hosted: Path) -> None:
    """Make verl's repository in a folder that stands for GitHub, with the tags of start files."""
    checkout = preset_of("verl-grpo").checkout
    assert checkout is not None
    place = framework(hosted / checkout.url.removeprefix("https://github.com/"), "verl")
    (place / "verl" / "version").mkdir()
    (place / "verl" / "version" / "version").write_text(checkout.tag.removeprefix("v"))
    program = place / "examples" / "data_preprocess" / "gsm8k.py"
    program.parent.mkdir(parents=True)
    program.write_text(GSM8K)
    for words in (
        ("init", "--quiet"),
        ("add", "--all"),
        ("-c", "user.name=lab", "-c", "user.email=lab@localhost", "commit", "--quiet", "-m", "it"),
        ("tag", checkout.tag),
        ("tag", AMD_TAG),
    ):
        subprocess.run(["git", *words], cwd=place, check=True, timeout=30)


def git_variables(hosted: str) -> dict[str, str]:
    """Return the variables by which git clones from that folder in place of GitHub."""
    return {
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": f"url.file://{hosted}/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
        "GIT_CONFIG_KEY_1": "safe.directory",
        "GIT_CONFIG_VALUE_1": "*",
    }


# --- images of one's own: what --image names ---------------------------------------------------

DOWNLOAD = """\
import gzip, sys
from pathlib import Path

folder = Path(sys.argv[sys.argv.index("--save_path") + 1])
for part in ("part_aa", "part_ab"):
    (folder / part).write_bytes(b"index")
(folder / "wiki-18.jsonl.gz").write_bytes(gzip.compress(b"{}"))
"""
"""Search-R1's program that downloads the index, in two parts, and the corpus."""
QUESTIONS = """\
import sys
from pathlib import Path

folder = Path(sys.argv[sys.argv.index("--local_dir") + 1])
folder.mkdir(parents=True, exist_ok=True)
for name in ("train", "test"):
    (folder / f"{name}.parquet").write_bytes(b"questions")
"""
RETRIEVER = """\
import os, sys
from pathlib import Path

for option in ("--index_path", "--corpus_path"):
    assert Path(sys.argv[sys.argv.index(option) + 1]).is_file(), option
words = ["pod-agent", "retriever", "--host", "127.0.0.1", "--port", "8000"]
os.execvp(words[0], words)
"""
"""Search-R1's retrieval server: the agent's own stand-in, once the index is there."""
MESSAGES = """\
import sys
from pathlib import Path

folder = Path(sys.argv[sys.argv.index("--root_dir") + 1])
folder.mkdir(parents=True, exist_ok=True)
(folder / "mathv60k_message.jsonl").write_text("{}")
"""
VERIFIER = """\
import http.server, json, sys
from pathlib import Path

assert Path(sys.argv[sys.argv.index("--dataset") + 1]).is_file()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"rewards": [1.0] * len(asked["query"])}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer(("", 5000), Handler).serve_forever()
"""
"""OpenRLHF-M's own reward server, whose port is fixed."""


def search_r1_image(folder: Path) -> dict[str, Path]:
    """Make what an image for Search-R1 has; return it by its places."""
    code = framework(folder / "Search-R1", "search-r1")
    programs = {
        "scripts/download.py": DOWNLOAD,
        "scripts/data_process/nq_search.py": QUESTIONS,
        "search_r1/search/retrieval_server.py": RETRIEVER,
    }
    _write(code, programs)
    python = folder / "retriever" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(ENVIRONMENT / "bin" / "python")
    return {"/opt/Search-R1": code, "/opt/retriever": folder / "retriever"}


def openrlhf_m_image(folder: Path) -> dict[str, Path]:
    """Make what an image for OpenRLHF-M has; return it by its place."""
    code = framework(folder / "OpenRLHF-M", "openrlhf-m")
    programs = {
        "examples/scripts/downloaders/download_mathv60k.py": MESSAGES,
        "openrlhf/models/__init__.py": "",
        "openrlhf/models/remote_rm/math_verifier.py": VERIFIER,
    }
    _write(code, programs)
    return {"/opt/OpenRLHF-M": code}


def _write(folder: Path, programs: Mapping[str, str]) -> None:
    for name, text in programs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
