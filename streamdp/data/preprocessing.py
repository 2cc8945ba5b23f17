"""River transformers that learn nothing from the stream."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from river import base

from streamdp.data.columns import scale_number, scale_to_bounds
from streamdp.data.declaration import Bounds, declared_bounds, declared_categories
from streamdp.data.floats import floats, number
from streamdp.data.records import check_record
from streamdp.data.scaling import scale_floats
from streamdp.errors import ConfigError, SchemaError

if TYPE_CHECKING:
    import pandas as pd


def _by_name(what: str, declared: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    if not isinstance(declared, Mapping):
        raise ConfigError(f"{what}: expected declarations by feature name, got {type(declared).__name__}")
    return declared.items()


class BoundsScaler(base.MiniBatchTransformer):
    """Scales features to [-1, 1] by declared public bounds; a River transformer that learns nothing.

    `bounds` are public (low, high) by feature. Values outside are clipped. Features without bounds stay unchanged.

    >>> from streamdp.data.preprocessing import BoundsScaler
    >>> BoundsScaler({"age": (18, 90)}).transform_one({"age": 72, "city": "Rome"})
    {'age': 0.5, 'city': 'Rome'}

    """

    def __init__(self, bounds: Mapping[str, Bounds]) -> None:
        self.bounds = bounds
        self._checked = {name: declared_bounds(name, pair) for name, pair in _by_name("bounds", bounds)}

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"bounds": {"feature": (0.0, 1.0)}}

    def transform_one(self, x: dict[Hashable, Any]) -> dict[Hashable, Any]:
        """Return a new dict of the features `x`, by name, with the bounded features scaled."""
        out = dict(check_record(x))
        for name in scale_floats(out, self._checked):
            out[name] = scale_number(number(f"column {name!r}", out[name]), *self._checked[name])
        return out

    def transform_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return a new DataFrame of the columns `X`, with the bounded features scaled."""
        _check_frame(X)
        return X.assign(
            **{
                n: scale_to_bounds(floats(f"column {n!r}", X[n]), *b)
                for n, b in self._checked.items()
                if n in X.columns
            }
        )


class CategoryEncoder(base.MiniBatchTransformer):
    """Encodes categories from public lists as 0/1 features; a River transformer that learns nothing.

    The first category of a list is the base level and gets no feature, so that the intercept is identifiable. River's
    OneHotEncoder, in contrast, releases which values have occurred.

    `categories` has a public list of texts by feature. A value that is not in its list raises `SchemaError`. Features
    without a list stay unchanged.

    >>> from streamdp.data.preprocessing import CategoryEncoder
    >>> CategoryEncoder({"size": ["s", "m", "l"]}).transform_one({"size": "m", "age": 7})
    {'age': 7, 'size=m': 1, 'size=l': 0}

    """

    def __init__(self, categories: Mapping[str, Sequence[str]]) -> None:
        self.categories = categories
        self._checked = {name: declared_categories(name, listed) for name, listed in _by_name("categories", categories)}

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"categories": {"feature": ["a", "b"]}}

    def transform_one(self, x: dict[Hashable, Any]) -> dict[Hashable, Any]:
        """Return a new dict of the features `x`, by name, with 0/1 features in place of the declared ones."""
        out = {name: value for name, value in check_record(x).items() if name not in self._checked}
        for name, listed in self._checked.items():
            if name in x:
                if not isinstance(x[name], Hashable) or x[name] not in listed:
                    raise SchemaError(f"column {name!r}: unknown_category")
                out |= {f"{name}={category}": int(x[name] == category) for category in listed[1:]}
        return out

    def transform_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return a new DataFrame of the columns `X`, with 0/1 columns in place of the declared ones."""
        _check_frame(X)
        out = X.drop(columns=[n for n in self._checked if n in X.columns])
        for name, listed in self._checked.items():
            if name in X.columns:
                if not X[name].isin(listed).all():
                    raise SchemaError(f"column {name!r}: unknown_category")
                out = out.assign(**{f"{name}={c}": (X[name] == c).astype(int) for c in listed[1:]})
        return out


def _check_frame(X: Any) -> None:
    if not hasattr(X, "assign"):
        raise SchemaError(f"X: expected a DataFrame of pandas, got {type(X).__name__}")
