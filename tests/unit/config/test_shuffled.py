"""The key `shuffled` of a job: what it accepts, what it promises, and what another one would promise less."""

from typing import Any

import pytest

from streamdp import PureDP
from streamdp.config.definition import read_definition
from streamdp.config.job import JobConfig, make_config
from streamdp.config.promise import weaker
from streamdp.config.prospect import shuffled
from streamdp.errors import ConfigError
from streamdp.privacy.statement import brief
from streamdp.serving.snapshots import Model
from streamdp.shuffling import shuffled_epsilon
from streamdp.store.snapshot import Counts, Snapshot

SCHEMA: dict[str, Any] = {"features": {"x": [0, 1]}, "target": {"column": "y", "classes": ["0", "1"]}}


def job(**more: Any) -> JobConfig:
    settings: dict[str, Any] = {
        "job": "j",
        "source": {"type": "http"},
        "schema": SCHEMA,
        "model": {"trust": "nobody", "budget": "eps=2"},
        "shuffled": {"people": 1000},
    }
    return make_config({key: value for key, value in (settings | more).items() if value is not None})


def test_the_store_keeps_it_and_it_belongs_to_the_model() -> None:
    plain = job(shuffled=None)
    assert "shuffled" not in plain.text()
    assert job().fingerprint() != plain.fingerprint()
    assert read_definition(job().text()).shuffled == job().shuffled


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": {"trust": "nobody", "budget": "mu=1"}}, "shuffled: needs a budget of a pure epsilon"),
        ({"model": {"trust": "nobody", "budget": "eps=1,delta=1e-6"}}, "shuffled: needs a budget of a pure epsilon"),
        ({"model": {"trust": "process"}}, "shuffled: needs a model or statistics of trust: nobody"),
        (
            {"model": {"trust": "nobody"}, "statistics": {"m": {"mean": "x"}}},
            "shuffled: needs a model or statistics of trust: nobody",
        ),
        ({"schema": SCHEMA | {"subject": "who"}}, "do not hide among them"),
        ({"schema": SCHEMA | {"budget": "b"}}, "do not hide among them"),
        ({"validation": {"share": 0.1}}, "do not hide among them"),
        ({"source": {"type": "csv", "path": "a.csv"}}, "shuffled: needs a source of type: http"),
        (
            {"source": {"type": "mixer", "learner": "http://a"}, "shuffled": None},
            "a source of type: mixer needs shuffled",
        ),
        ({"source": {"type": "mixer", "learner": "http://u:p@a"}}, "source.learner: expected an address without"),
        ({"shuffled": {"people": 1}}, "shuffled.people"),
        ({"shuffled": {"people": 10, "delta": 0}}, "shuffled.delta"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        job(**settings)


def test_a_statement_says_both_promises() -> None:
    """The first holds whatever the shuffler does, the second one if it does not lie; the ledger counts the first."""
    config = job()
    estimator = config.build_estimator()
    made = Snapshot("j", config.fingerprint(), config.text(), 1, 0.0, Counts(), {}, {})
    model = Model(read_definition(config.text()), estimator, made)
    assert "shuffler" not in model.statement()  # nothing was learned
    estimator.learn_one({"x": 0.5}, "1")
    lines = brief(model.statement()).splitlines()
    assert estimator.guarantee.budgets == (PureDP(2.0),)
    local, both = (
        next(i for i, line in enumerate(lines) if text in line) for text in ("epsilon = 2:", "shuffler that")
    )
    assert local < both
    found = float(lines[both].partition("(epsilon, delta) = (")[2].partition(",")[0])
    assert shuffled_epsilon(2.0, 1000, 1e-6) <= found <= shuffled_epsilon(2.0, 1000, 1e-6) + 2e-4
    assert "at least 1,000 honest people" in lines[both]
    assert "If it lies, the promise above holds." in lines[both]


def test_less_of_it_is_a_weaker_promise() -> None:
    now = job().promise()
    for other, less in (
        (job(shuffled={"people": 900}), True),
        (job(shuffled={"people": 1000, "delta": 1e-5}), True),
        (job(shuffled=None), True),
        (job(shuffled={"people": 1100}), False),
    ):
        said = weaker(now, other.promise())
        assert bool(said) is less
        lost = f"shuffled reports promised {now.shuffled} and now "
        assert any(sentence.startswith(lost) for sentence in said) is less
    assert not weaker(job(shuffled=None).promise(), now)


def test_a_plan_says_what_a_shuffler_would_allow() -> None:
    said = shuffled(job(shuffled=None), 10_000)
    assert said is not None
    assert "1,000 people at once, reports of eps=2 promise eps=0.54" in said
    assert "reports of eps=3.44 would promise eps=2,delta=1e-06" in said
    assert shuffled(job(shuffled=None, model={"trust": "nobody", "budget": "mu=1"}), 10_000) is None
    assert shuffled(job(shuffled=None, source={"type": "csv", "path": "a.csv"}), 10_000) is None
