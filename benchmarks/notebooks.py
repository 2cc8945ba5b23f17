"""Run a notebook and store its outputs. Run with `python -m benchmarks.notebooks NAME [RECORDS]`.

Without a number of records a notebook has its own; see `benchmarks.figures` for those of `make figures`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"


def execute(name: str) -> None:
    """Run the notebook in its folder from top to bottom, and store it."""
    path = FOLDER / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    language = dict(notebook.metadata["language_info"])
    where = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=None, record_timing=False, resources=where).execute()
    notebook.metadata["language_info"] = language  # without the version of this Python
    nbformat.write(notebook, path)


if __name__ == "__main__":
    if sys.argv[2:]:
        os.environ["STREAMDP_RECORDS"] = sys.argv[2]
    execute(sys.argv[1])
