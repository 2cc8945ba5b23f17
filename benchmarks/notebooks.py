"""Run a notebook. Run with `python -m benchmarks.notebooks NAME [--records N | --write]`.

`--write` stores the outputs, at the size of `STORED` or the notebook's own.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
STORED = {"02_ldp_sgd_figures": "300000"}
"""The records of a notebook that is stored at another size than its own."""


def main() -> None:
    """Run the notebook in its folder from top to bottom, and with --write store it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.notebooks", description=main.__doc__)
    parser.add_argument("name", choices=sorted(path.stem for path in FOLDER.glob("*.ipynb")))
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--records", help="another size, which is not stored")
    size.add_argument("--write", action="store_true", help="store the outputs")
    given = parser.parse_args()
    name = given.name
    if records := STORED.get(name) if given.write else given.records:
        os.environ["STREAMDP_RECORDS"] = records
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
