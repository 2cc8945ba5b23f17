"""A bad value is a typed error that shows no value, not in its causes either, and changes and leaves nothing."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest

import streamdp
from streamdp import ApproxDP
from streamdp.aggregation.shuffled_sum import LocalRandomizer, Shuffled, Shuffler
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.errors import StreamDPError
from streamdp.estimators.ldp.randomizer import Report
from streamdp.estimators.user.randomizer import UserRandomizer, UserReport
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.devices import ShuffleDevice
from tests.support.shuffle_model import announced
from tests.support.shuffle_model import model as agreed_model
from tests.support.states import kept

SECRET = "4711"
NAMES = ["a", "b"]


class Leaky:
    """A value whose conversion fails with the value in the message."""

    def __float__(self) -> float:
        raise ValueError(f"HIV {SECRET}")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise KeyError(f"HIV {SECRET}")

    __index__ = __int__ = __hash__ = __float__  # type: ignore[assignment]


BAD: dict[str, Any] = {
    "text": f"HIV {SECRET}",
    "bytes": f"HIV {SECRET}".encode(),
    "long": int(SECRET) * 10**400,
    "nan": float("nan"),
    "infinity": float("-inf"),
    "list": [SECRET, SECRET],
    "nested": {"HIV": [SECRET]},
    "complex": complex(int(SECRET), 1),
    "leaky": Leaky(),
    "decimal": Decimal(SECRET) * Decimal(10) ** 400,
    "none": None,
}


def estimators() -> Iterator[tuple[str, Callable[[], Any]]]:
    for name in streamdp.estimators.__all__:
        if name.endswith(("Regressor", "Classifier")):
            kind = getattr(streamdp, name)
            yield name, lambda kind=kind: kind(features=NAMES)
            if name.startswith("LDP"):
                yield name + " of raw records", lambda kind=kind: kind(features={"a": (0.0, 1.0), "b": ["u", "v"]})


def with_feature(model: Any, good: Any, y: Any, name: str) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """The ways in that take features, with a bad value of one of them."""
    frame = {k: [v, v] for k, v in good.items()}
    one = getattr(model, "randomizer", None)

    def framed(v: Any) -> pd.DataFrame:
        return pd.DataFrame(frame | {name: pd.Series([v, v], dtype=object)})  # pandas may refuse to guess a type

    yield f"learn_one {name}", lambda v: model.learn_one(good | {name: v}, y, subject="ann")
    yield f"predict_one {name}", lambda v: model.predict_one(good | {name: v})
    yield f"learn_many {name}", lambda v: model.learn_many(framed(v), pd.Series([y, y]))
    yield f"predict_many {name}", lambda v: model.predict_many(framed(v))
    if one is not None:
        if isinstance(one, UserRandomizer):
            yield f"randomizer {name}", lambda v: one([(good | {name: v}, 1.0)])
        elif callable(one):
            yield f"randomizer {name}", lambda v: one(good | {name: v}, 1.0)
        else:
            yield f"randomizer {name}", lambda v: one.messages(good | {name: v}, 1.0)


def actions(model: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Every way in, with a bad value in each place."""
    good: Any = {"a": 0.5, "b": 0.5 if isinstance(model.features, list) else "u"}
    y: Any = 1.0 if hasattr(model, "theta") and not hasattr(model, "classes") else True
    for name in NAMES:
        yield from with_feature(model, good, y, name)
    yield "target", lambda v: model.learn_one(good, v)
    yield "targets", lambda v: model.learn_many(pd.DataFrame([good, good]), pd.Series([v, v], dtype=object))
    yield "subject", lambda v: model.learn_one(good, y, subject=v)
    yield "subjects", lambda v: model.learn_encoded([[0.5, 0.5]], [1.0], subjects=[v])
    yield "rows", lambda v: model.learn_encoded([[v, 0.5], [0.5, 0.5]], [1.0, 1.0])
    yield "targets of rows", lambda v: model.learn_encoded([[0.5, 0.5]], [v])
    yield "all rows", lambda v: model.learn_encoded(v, v)
    yield "budgets", lambda v: model.learn_encoded([[0.5, 0.5]], [1.0], budgets=[v])
    yield "budgets of 0", lambda v: model.learn_encoded([[0.5, 0.5]], [1.0], budgets=[0.0 if v is None else v])
    yield "budget", lambda v: model.learn_one(good, y, budget=v)
    yield "columns", lambda v: model.learn_encoded([[v, 0.5, 0.5]], [1.0])
    yield "one dimension", lambda v: model.learn_encoded([v, 0.5], [1.0])
    yield "more targets", lambda v: model.learn_encoded([[0.5, 0.5]], [1.0, v])
    yield "more budgets", lambda v: model.learn_encoded([[0.5, 0.5]], [1.0], budgets=[1.0, v])
    yield "no class", lambda v: model.learn_encoded([[0.5, 0.5]], [v if y == 1.0 and y is not True else 0.5])
    yield "predict_encoded", lambda v: model.predict_encoded([[v, 0.5]])
    if hasattr(model, "predict_proba_encoded"):
        yield "predict_proba_encoded", lambda v: model.predict_proba_encoded([[v, 0.5]])
        yield "predict_proba_one", lambda v: model.predict_proba_one(good | {"a": v})
    if hasattr(model, "randomizer"):
        one = model.randomizer
        if isinstance(one, UserRandomizer):
            yield "randomizer y", lambda v: one([(good, v)])
            yield "absorb", lambda v: model.absorb(UserReport(v, None, model.batch, model.record_budget))
        elif callable(one):
            yield "randomizer y", lambda v: one(good, v)
            yield "absorb", lambda v: model.absorb(Report([v, 1.0, 1.0], model.record_budget))  # type: ignore[arg-type]
        else:
            yield "randomizer y", lambda v: one.messages(good, v)
            yield "absorb", lambda v: model.absorb(Shuffled(v, 1))


def others() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """The ways in that are no estimators."""
    params = VectorSum.calibrated(ApproxDP(1.0, 1e-6), 1.0, 10, 2)
    yield "counts", lambda v: LocalRandomizer(params).counts([v, 0.5])  # type: ignore[arg-type]
    yield "messages", lambda v: LocalRandomizer(params).messages([[v, 0.5]])  # type: ignore[arg-type]
    yield "collect", lambda v: Shuffler(params).collect(v)
    yield "device", lambda v: ShuffleDevice(Agreement(agreed_model())).answer(announced(), {"a": v, "b": 0.5}, 1.0)
    yield "device y", lambda v: ShuffleDevice(Agreement(agreed_model())).answer(announced(), {"a": 0.5, "b": 0.5}, v)


def shown(error: BaseException | None) -> str:
    """All that an error and its causes tell."""
    if error is None:
        return ""
    return (
        f"{error!s} {error.args!r} {getattr(error, 'object', '')!r}" + shown(error.__cause__) + shown(error.__context__)
    )


ALLOWED = {("subject", kind) for kind in ("text", "bytes", "long", "none")} | {("subjects", "bytes")}
ALLOWED |= {("subjects", kind) for kind in ("text", "long", "none")} | {("budgets", "none"), ("budgets", "nan")}
ALLOWED |= {("budget", kind) for kind in ("none", "text", "bytes")} | {("budgets of 0", "nan")}
"""Values that are no bad ones there, and texts of budgets, which are shown."""


def faults(name: str, act: Callable[[Any], Any], model: Any = None) -> list[str]:
    found = []
    before = None if model is None else kept(model)
    for kind, value in BAD.items():
        if (name, kind) in ALLOWED:
            continue
        try:
            act(value)
            if not name.startswith("subject") or model.learns.needs_subject:
                found.append(f"{name} ({kind}): no error")
            elif model is not None:  # nobody asks for it
                before = kept(model)
        except StreamDPError as error:
            if SECRET in shown(error):
                found.append(f"{name} ({kind}): {shown(error)[:150]}")
        except Exception as error:  # noqa: BLE001 - it is what the test looks for
            found.append(f"{name} ({kind}): {type(error).__name__}: {shown(error)[:150]}")
        if model is not None and kept(model) != before:
            found.append(f"{name} ({kind}): something changed")
            before = kept(model)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in estimators()])
def test_no_error_of_an_estimator_shows_a_value(make: Callable[[], Any]) -> None:
    model = make()
    assert not [fault for name, act in actions(model) for fault in faults(name, act, model)]


@pytest.mark.filterwarnings("ignore")
def test_no_error_of_another_way_in_shows_a_value() -> None:
    assert not [fault for name, act in others() for fault in faults(name, act)]
