"""A larger budget goes on with every kind of job where `--accept-budget` is given, and the statement says both."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.commands import Quick
from tests.support.sizes import some

STATISTICS = {"m": {"mean": "x"}, "c": {"count": "g"}}
SUMS: dict[str, Any] = {"statistics": STATISTICS, "target": None}
USERS = {"estimator": "UserLevelLDPRegressor", "window": 300}
KINDS: dict[str, dict[str, Any]] = {
    "reports": {"trust": "nobody"},
    "reports of users": USERS,
    "planned reports of users": {**USERS, "method": "ac-sa", "horizon": 6000},
    "batches": {"trust": "process"},
    "planned batches": {"trust": "process", "method": "ac-sa", "horizon": 6000},
    "mixed batches": {"trust": "shuffler", "batch_size": 1000},
    "windows": {"trust": "window", "window": 1000},
    "planned windows": {"trust": "window", "method": "private-range", "window": 3000},
    "statistics": {"trust": "process", **SUMS},
    "statistics of a window": {"trust": "window", **SUMS},
    "statistics of mixed batches": {"trust": "shuffler", **SUMS},
    "statistics by day": {"trust": "process", **SUMS, "every": "1 day"},
    "statistics beside batches": {"trust": "process", "statistics": STATISTICS},
    "held-out people": {"trust": "process", "validation": {"share": 0.2}},
}


def write(folder: Path, n: int, kind: dict[str, Any], budget: str) -> None:
    rng = np.random.default_rng(1)
    rows = [f"p{i},{x:.3f},{'ab'[i % 2]},{0.2 + x / 2:.3f}" for i, x in enumerate(rng.uniform(size=n))]
    (folder / "data.csv").write_text("\n".join(["who,x,g,y", *rows, ""]))
    beside = {name: kind[name] for name in ("statistics", "validation") if name in kind}
    model = {name: value for name, value in kind.items() if name not in ("target", *beside)}
    schema = {"features": {"x": [0, 1], "g": ["a", "b"]}, "subject": "who"}
    if "target" not in kind:
        schema["target"] = {"column": "y", "bounds": [0, 1]}
    job = {"job": "j", "source": {"path": "data.csv"}, "schema": schema, "cap": "eps=8,delta=1e-4", **beside}
    (folder / "job.yaml").write_text(json.dumps(job | {"model": model | {"budget": budget}}))


@pytest.mark.parametrize("name", some(KINDS, 0, 4, 5, 6, 12))
def test_a_larger_budget_goes_on_where_it_is_accepted(name: str, tmp_path: Path, quick: Quick) -> None:
    write(tmp_path, 3000, KINDS[name], "eps=2,delta=1e-6")
    quick.output("run", "job.yaml")
    learned = json.loads(quick.output("status", "j.db", "--json"))["learned"]
    assert learned > 0
    write(tmp_path, 6000, KINDS[name], "eps=4,delta=1e-6")
    assert "a record spent eps=2,delta=1e-06 in all and now spends eps=4" in quick.error(2, "run", "job.yaml")
    quick.output("run", "job.yaml", "--accept-budget")
    status = json.loads(quick.output("status", "j.db", "--json"))
    assert status["learned"] == 2 * learned
    said = quick.output("statement", "j.db", "--full")
    assert f"until {learned:,} records were learned, the default budget was eps=2,delta=1e-06 and the cap" in said
    quick.output("run", "job.yaml")  # nothing new to accept


def test_reports_of_statistics_begin_anew(tmp_path: Path, quick: Quick) -> None:
    """Their counts mean another thing at each epsilon."""
    kind = {"trust": "nobody", **SUMS}
    write(tmp_path, 3000, kind, "eps=1")
    quick.output("run", "job.yaml")
    write(tmp_path, 3000, kind, "eps=2")
    said = quick.error(4, "run", "job.yaml", "--accept-budget")
    assert (
        "model.budget was eps=1 and is eps=2; restore that configuration, or begin a new model by --new-model" in said
    )
    assert "--accept-budget" in quick.error(2, "run", "job.yaml", "--new-model")
    assert (
        "3,000 records with eps=1 (trust: nobody): these spends are kept"
        in quick("run", "job.yaml", "--new-model", "--accept-budget")[2]
    )
