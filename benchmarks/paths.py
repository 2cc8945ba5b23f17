"""What one record enters, for each trust: `python -m benchmarks.paths [--calls NAME]`.

Counted are the calls of Python functions of the library, and in how many files they are; a switch is a call in another
file than the call before, and a climb one in a room on a higher floor. The person of the record is known to the ledger.
`--calls` prints the calls of the rows whose name has this text.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import river
from river import linear_model

import streamdp
from benchmarks.shared.pages import table
from tests.support.structure import FLOORS

FEATURES = {"age": (0, 100), "hours": (0, 10)}
RECORD = {"age": 40.0, "hours": 2.5}
SIZE = 1000
TRUSTS = {
    "nobody": ("LDPASGD", {}, "eps=1e6"),
    "process": ("PanPrivate", {"batch_size": SIZE}, "eps=1e6,delta=.01"),
    "shuffler": ("Shuffle", {"batch_size": SIZE}, "eps=1e6,delta=.01"),
    "window": ("Windowed", {"window": SIZE}, "eps=1e6,delta=.01"),
}
OURS = str(Path(streamdp.__file__).parent)
ROOMS = {room: floor for floor, layer in enumerate(FLOORS) for room in layer}


def calls(run: Callable[[], object], package: str) -> list[tuple[str, str]]:
    """The files of a package and the functions that are called, in order."""
    found: list[tuple[str, str]] = []

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            file = frame.f_code.co_filename.removeprefix(package).lstrip("/")
            found.append((file, frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return found


def runs() -> Iterator[tuple[str, str, Callable[[], object]]]:
    """What is measured: a name, the package, and a call."""
    package = OURS
    for trust, (prefix, given, cap) in TRUSTS.items():
        for kind, y in (("Regressor", 0.5), ("Classifier", True)):
            target = {"target": (0, 1)} if kind == "Regressor" else {}
            make = partial(getattr(streamdp, prefix + kind), features=FEATURES, **target, **given)
            for ledger in (None, streamdp.Ledger(cap)):
                model = make(ledger=ledger)
                subject: Any = {} if ledger is None else {"subject": "ann"}
                people = [*map(str, range(SIZE - 1)), "ann", "bob"]  # a batch or window, and the first of the next one
                for person in people:
                    model.learn_one(dict(RECORD), y, **(subject and {"subject": person}))
                model.predict_one(RECORD)
                name = f"{trust}, {kind.lower()}"
                how = "subject and ledger" if subject else "plain"
                yield f"learn_one, {name}, {how}", package, partial(model.learn_one, RECORD, y, **subject)
                if not subject:
                    yield f"predict_one, {name}", package, partial(model.predict_one, RECORD)
    rival = linear_model.LogisticRegression()
    rival.learn_one(RECORD, True)
    package = str(Path(river.__file__).parent)
    yield "learn_one, River's LogisticRegression", package, partial(rival.learn_one, RECORD, True)
    yield "predict_one, River's LogisticRegression", package, partial(rival.predict_one, RECORD)


def figures(found: list[tuple[str, str]]) -> list[int]:
    """How many calls, files, switches and climbs."""
    files = [file for file, _ in found]
    floors = [ROOMS.get(file.split("/")[0], 0) for file in files]
    switches = sum(a != b for a, b in pairwise(files))
    return [len(found), len(set(files)), switches, sum(a < b for a, b in pairwise(floors))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", help="print the calls of the rows whose name has this text")
    chosen = parser.parse_args().calls
    warnings.simplefilter("ignore")
    rows = []
    for name, package, run in runs():
        found = calls(run, package)
        rows.append(
            [name, *map(str, figures(found)[: 4 if package == OURS else 3]), *([""] if package != OURS else [])]
        )
        if chosen and chosen in name:
            print(name, *(f"  {file} {function}" for file, function in found), sep="\n")
    print(table(["what", "calls", "files", "switches", "climbs"], rows))


if __name__ == "__main__":
    main()
