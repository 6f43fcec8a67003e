"""The license of what is built: the text of our own, and the notices of what is bundled.

The repository grants Apache-2.0 by its SPDX name and holds no copy of the text. A build takes the
text from a pinned library that is under the same license, and checks it by its digest.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import parse_wheel_filename

from tools.build.lock import BuildError, metadata

if TYPE_CHECKING:
    from collections.abc import Iterable

LICENSE_TEXT = "LICENSE.Apache-2.0.txt"
"""Its name in wheel, sdist and one file."""
APACHE_DIGEST = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of the license as its authors publish it."""
HAS_THE_TEXT = "yarl"
"""The library from which the text is taken."""
LEGAL_FILE = re.compile(r"(licen[cs]e|notice|copying|authors)", re.IGNORECASE)
RULE = "=" * 78


def apache_license(wheels: Iterable[Path]) -> bytes:
    """Return the text of Apache-2.0, from the pinned library among some wheels that has it."""
    for wheel in wheels:
        if parse_wheel_filename(wheel.name)[0] != HAS_THE_TEXT:
            continue
        for content in legal_files(wheel).values():
            if hashlib.sha256(content).hexdigest() == APACHE_DIGEST:
                return content
    raise BuildError(
        f"no bundled wheel of {HAS_THE_TEXT} has the text of Apache-2.0 as its authors publish it:"
        " name another library in scripts/tools/build/licenses.py"
    )


def legal_files(wheel: Path) -> dict[str, bytes]:
    """Return the license and notice files of a wheel by their names in it."""
    with zipfile.ZipFile(wheel) as file:
        names = [
            name
            for name in file.namelist()
            if ".dist-info/" in name and LEGAL_FILE.search(Path(name).name)
        ]
        return {name: file.read(name) for name in names}


def license_name(wheel: Path) -> tuple[str, str]:
    """Return the SPDX expression of a wheel's license, and the name that its metadata has else."""
    fields = metadata(wheel)
    expression = "".join(fields.get("License-Expression", [])[:1])
    classifiers = [c for c in fields.get("Classifier", []) if c.startswith("License ::")]
    if classifiers:
        return expression, classifiers[0].rpartition(" :: ")[2]
    first_line = "".join(fields.get("License", [])[:1]).partition("\n")[0]
    return expression, first_line


def notices(wheels: list[Path]) -> str:
    """Return the licenses and notices of some wheels: a project once, whatever its wheels."""
    parts: dict[str, str] = {}
    for wheel in wheels:
        fields = metadata(wheel)
        title = f"{fields['Name'][0]} {fields['Version'][0]}"
        if title in parts:
            continue
        expression, name = license_name(wheel)
        texts = [content.decode("utf-8", "replace") for content in legal_files(wheel).values()]
        heading = f"{RULE}\n{title}: {expression or name or 'see the text'}\n{RULE}"
        parts[title] = "\n\n".join([heading, *(text.strip() for text in texts)])
    return "\n\n\n".join(parts.values()) + "\n"
