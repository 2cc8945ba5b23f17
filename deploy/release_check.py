"""Compare all that a release says about its version: `python deploy/release_check.py`, after `make dist docs`.

Prints each place with its version, and fails if one has another than `streamdp.__version__`, or is missing.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]


def found(path: Path, pattern: str) -> str:
    """The first group of a pattern in a file; "none" if there is no such file or place."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else "none"


def one(folder: Path, pattern: str, version: Callable[[Path], str]) -> str:
    """The version of the only file of a pattern."""
    files = sorted(folder.glob(pattern))
    return version(files[0]) if len(files) == 1 else f"{len(files)} files {pattern}"


def of_wheel(path: Path) -> str:
    """The version in the metadata of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        return str(Parser().parsestr(wheel.read(name).decode())["Version"])


def of_source(path: Path) -> str:
    """The version in the metadata of a source package."""
    with tarfile.open(path) as source:
        (name,) = [name for name in source.getnames() if re.fullmatch(r"[^/]+/PKG-INFO", name)]
        file = source.extractfile(name)
        return "none" if file is None else str(Parser().parsestr(file.read().decode())["Version"])


def versions(root: Path) -> dict[str, str]:
    """The version by place; that of the package is the first."""
    return {
        "streamdp.__version__": found(root / "streamdp" / "__init__.py", r'^__version__ = "(.*)"$'),
        "the wheel": one(root / "dist", "*.whl", of_wheel),
        "the source package": one(root / "dist", "*.tar.gz", of_source),
        "the documentation": found(root / "docs" / "_build" / "html" / "index.html", r"<title>streamdp (\S+?)</title>"),
        "CHANGELOG.md, its first release": found(root / "CHANGELOG.md", r"^## ([^\s,]+)"),
        "CITATION.cff": found(root / "CITATION.cff", r"^version: (\S+)$"),
    }


def main(root: Path = ROOT) -> None:
    """Print all versions; exit with 1 if they differ."""
    (first, version), *others = versions(root).items()
    print(f"{first}: {version}")
    for place, other in others:
        print(f"{place}: {other}" + ("" if other == version else f", expected {version}"))
    if any(other != version for _, other in others):
        sys.exit(1)


if __name__ == "__main__":
    main()
