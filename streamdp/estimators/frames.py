"""Frames of pandas and polars, tables of Arrow and arrays of numpy as columns. Each is imported only when needed."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from streamdp.data.floats import floats
from streamdp.data.late import pl
from streamdp.errors import SchemaError


def as_frame(X: Any) -> Any:
    """Arrow's tables and record batches, and lazy frames, as frames of polars; any other X as it is."""
    if type(X).__module__.partition(".")[0] == "pyarrow":
        return pl.from_arrow(X)
    return X.collect() if type(X).__name__ == "LazyFrame" else X


def array_of(y: object) -> object:
    """A series of numbers or truth values without gaps as an array; any other y as it is."""
    if str(getattr(y, "dtype", "")).lower().startswith(("float", "int", "uint", "bool")):
        found = np.asarray(y)
        if found.dtype.kind in "biuf":
            return found
    return y


def names_of(X: object) -> list[Hashable] | None:
    """The names of the columns of a frame; None for an array. Raises `SchemaError` for any other X."""
    if isinstance(X, Mapping) or not (hasattr(X, "__len__") and getattr(X, "ndim", None) != 0):
        raise SchemaError(f"X: expected a frame or an array, got {type(X).__name__}")
    columns = getattr(X, "columns", None)
    return None if columns is None else list(columns)


def column_of(X: Any, names: Sequence[Hashable], name: Hashable) -> Any:
    """A column of a frame X, or of an array (n, p) with these names.

    Raises `SchemaError` for an array of another shape, and for a frame that has the column twice.
    """
    found = names_of(X)
    if found is not None:
        if found.count(name) > 1:
            raise SchemaError(f"X: has the column {name!r} twice; rename one of them or leave it out")
        return X[name]
    array = floats("X", X) if isinstance(X, Sequence) else X if np.ma.is_masked(X) else np.asarray(X)
    if array.ndim != 2 or array.shape[1] != len(names):
        raise SchemaError(f"X: expected shape (n, {len(names)}), got {array.shape}")
    return array[:, list(names).index(name)]


def series_like(X: Any, values: Any, labels: Sequence[Hashable] | None = None) -> object:
    """Predictions, values (n,), in the form of the rows X: a series of the same library, or an array.

    With `labels`, which only frames take, values are their indices.
    """
    if names_of(X) is None:
        return np.asarray(values)
    if hasattr(X, "get_column"):
        return pl.Series(values) if labels is None else pl.Series(labels).gather(values)
    import pandas as pd

    return pd.Series(values if labels is None else pd.Series([*labels]).to_numpy()[values], index=X.index)


def frame_like(X: Any, values: np.ndarray, labels: Sequence[Hashable]) -> object:
    """As `series_like`, for values (n, K) of rows X: one column for each label."""
    if names_of(X) is None:
        return values
    if hasattr(X, "get_column"):
        return pl.DataFrame({str(label): values[:, k] for k, label in enumerate(labels)})
    import pandas as pd

    return pd.DataFrame(values, columns=list(labels), index=X.index)
