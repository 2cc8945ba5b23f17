"""Run a notebook. Run with `python -m benchmarks.notebooks NAME [--records N] [--write]`.

`--write` stores the outputs. Without a number of records a notebook has its own; see `benchmarks.figures` for those of
`make figures`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"


def main() -> None:
    """Run the notebook in its folder from top to bottom, and with --write store it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.notebooks", description=main.__doc__)
    parser.add_argument("name", choices=sorted(path.stem for path in FOLDER.glob("*.ipynb")))
    parser.add_argument("--records", help="the size; a stored one has its own, or that of `make figures`")
    parser.add_argument("--write", action="store_true", help="store the outputs")
    given = parser.parse_args()
    if given.records:
        os.environ["STREAMDP_RECORDS"] = given.records
    name = given.name
    path = FOLDER / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    language = dict(notebook.metadata["language_info"])
    where = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=None, record_timing=False, resources=where).execute()
    notebook.metadata["language_info"] = language  # without the version of this Python
    if given.write:
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
