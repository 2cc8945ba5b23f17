"""The declared features of a model: how records become rows of numbers, and what is checked on the way."""

import contextlib
import math
import warnings
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.data.encoder import RowEncoder
from streamdp.data.floats import is_missing, is_numeric, number
from streamdp.data.late import pl
from streamdp.data.records import RawRecord, check_record
from streamdp.data.transforms import EXCLUSIVE, Piece
from streamdp.errors import ConfigError, SchemaError
from streamdp.estimators.frames import column_of, names_of
from streamdp.learners.linear_problem import Columns

if TYPE_CHECKING:
    from streamdp.data.declaration import Declaration
    from streamdp.data.schema import Schema


_LEAST_SPREAD, _ROOTS = 0.5, 2.0  # of a level, in reports and windows: so many roots of its usual share

Targets = Mapping[Hashable, float] | tuple[float, float] | None


class SchemaWarning(UserWarning):
    """The names of the features came from the data, or a record does not have exactly the declared ones."""


class Features:
    """The names of the features in the order of the columns, and a buffer for one record.

    Copies and pickles have an empty buffer. The `owner`, an estimator's name, is for warnings. `targets`: the encoded
    targets of the classes, or the bounds to which numbers are clipped; None: numbers as they come.

    Raises `ConfigError` if there is no name, or if a name occurs twice.
    """

    def __init__(self, names: Sequence[Any], owner: str, targets: Targets = None) -> None:
        try:
            fits = len(set(names)) == len(names) > 0
        except TypeError:  # a name without a hash
            fits = False
        if not fits:
            raise ConfigError("features: expected a list of names, at least one and none twice")
        self.names = tuple(names)
        self.columns = Columns(np.zeros(len(names)), np.ones(len(names)), np.zeros(len(names), dtype=bool))
        self.schema: Schema | None = None
        self._owner, self._targets = owner, targets
        self._warned: set[str] = set()
        self.encoder = self._make_encoder()
        """What packs plain records."""
        self.buffer = np.zeros(len(names) + 1)
        """A record: its features and its target. Zeros, except while it is learned."""
        self.row, self.target = self.buffer[None, :-1], self.buffer[-1:]
        """The features (1, p) and the target (1,) in the buffer."""

    def __reduce__(self) -> tuple[object, ...]:
        return Features, (self.names, self._owner, self._targets), {"_warned": self._warned}

    def _make_encoder(self) -> RowEncoder:
        return RowEncoder([(name, None, [Piece(name, "number", ())]) for name in self.names], targets=self._targets)

    def pack(self, x: RawRecord, y: float, out: np.ndarray) -> None:
        """Write a record x and its encoded target y into `out` (p + 1,): the exact way, for any record.

        Undeclared names are ignored, and missing features count as 0; each warns once.

        Raises `SchemaError` if a feature is not a finite number, or if x is no mapping.
        """
        check_record(x)
        if missing := [name for name in self.names if name not in x]:
            self._warn_missing(missing)
        self._warn_of_more(x, self.names)
        out[:-1] = [_finite(name, x.get(name, 0.0)) for name in self.names]
        out[-1] = y

    def constants(self) -> list[object]:
        """The declared constants of the columns, beside their names. They are the same on every machine."""
        return []

    def row_of(self, x: RawRecord) -> np.ndarray:
        """Return x as a new (1, p) array. The buffer is not used, so this needs no lock."""
        row = np.zeros(len(self.names) + 1)
        self.pack(x, 0.0, row)
        return row[None, :-1]

    def frame(self, X: Any) -> np.ndarray:
        """Return the declared columns of a frame or array X as an (n, p) array. NaN stays NaN; a missing one is 0.

        Raises `SchemaError` if a column does not hold numbers.
        """
        known = set(self.names if (columns := names_of(X)) is None else columns)
        out = np.zeros((len(self.names), len(X))).T  # frames have columns
        for j, name in enumerate(self.names):
            if name not in known:
                self._warn_missing([name])
                continue
            column = column_of(X, self.names, name)
            with contextlib.suppress(Exception):  # it may have a value in its message
                if is_numeric(column):
                    given = column.to_numpy(dtype=float, na_value=np.nan) if hasattr(X, "iloc") else np.asarray(column)
                    if is_numeric(given):  # a column of polars shows its kind only as an array
                        out[:, j] = given
                        continue
            raise SchemaError(
                f"feature {name!r}: expected numbers; text needs categories: features={{{name!r}: [...]}}"
            )
        return out

    def array(self, X: np.ndarray) -> np.ndarray:
        """Return the columns (n, p) that are learned of raw numbers: an array X with the raw columns in their order.

        Raises `SchemaError` for another number of columns.
        """
        if X.shape[1] != len(self.names):
            raise SchemaError(f"X: expected {len(self.names)} columns, got {X.shape[1]}")
        return X

    def _warn_of_more(self, x: RawRecord, declared: Collection[object]) -> None:
        if len(x) > len(declared):
            self._warn("unknown", "a record has features that were not declared; they are ignored", 5)

    def _warn_missing(self, names: Iterable[object]) -> None:
        name = next(iter(names))
        self._warn("missing", f"a record lacks the declared feature {name!r}; missing features count as 0", 5)

    def _warn(self, about: str, message: str, level: int = 4) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(f"{self._owner}: {message}", SchemaWarning, stacklevel=level)


class SchemaFeatures(Features):
    """Features that come raw, and a declared public schema that says how to make columns of them.

    A number is clipped to its bounds and scaled to [-1, 1]; a category becomes a column of 0 and 1 for each level but
    the first; declared transforms make other columns (see `data.schema.Schema`). The `owner` is for warnings.
    `coded`: as for `Schema`, for statistics, which alone take texts of an open domain.

    Raises `SchemaError` for a declaration that contradicts itself.
    """

    def __init__(
        self,
        declared: Mapping[Any, object],
        owner: str,
        targets: Targets = None,
        coded: bool = False,
    ) -> None:
        from streamdp.data.schema import Schema

        self._declared, self._coded = declared, coded
        self._schema = Schema(declared, target="(target)", coded=coded)
        self.declarations = self._schema.declarations
        pieces = self._schema.pieces
        super().__init__(self._schema.feature_names, owner, targets)
        self.schema = self._schema
        typical: dict[int, tuple[float, float]] = {}
        apart: list[tuple[int, ...]] = []
        j = 0
        for name, feature in self._schema.declarations.items():
            for piece in feature.pieces:
                if not 1e-60 <= piece.unit <= 1e60:
                    raise SchemaError(f"{name!r}: expected bounds at a distance from 2e-60 to 2e60")
            if feature.length and not coded:
                raise SchemaError(f"{name!r}: a text of an open domain is for heavy hitters; a model may hash it")
            if feature.typical is not None and (found := feature.pieces[0].typical(*feature.typical)) is not None:
                typical[j] = found
            if feature.pieces and feature.pieces[0].kind in EXCLUSIVE:
                levels = range(j, j + len(feature.pieces))
                apart.append(tuple(levels))
                spread = min(1.0, max(_LEAST_SPREAD, _ROOTS * (len(levels) + 1) ** -0.5))
                typical |= dict.fromkeys(levels, (0.0, spread))
            j += len(feature.pieces)
        self.columns = Columns(
            np.array([piece.origin for piece in pieces]),
            np.array([piece.unit for piece in pieces]),
            np.array([piece.numeric for piece in pieces]),
            typical,
            declared=True,
            own=tuple(j for j, piece in enumerate(pieces) if piece.own),
            private=tuple(j for j, piece in enumerate(pieces) if piece.private),
            apart=tuple(apart),
        )

    def _make_encoder(self) -> RowEncoder:
        return self._schema.encoder(self._targets)

    def __reduce__(self) -> tuple[object, ...]:
        return SchemaFeatures, (self._declared, self._owner, self._targets, self._coded), {"_warned": self._warned}

    def pack(self, x: RawRecord, y: float, out: np.ndarray) -> None:
        """See `Features.pack`; values of x are raw: numbers, or text as in a CSV file.

        Raises `SchemaError` that names the feature if it is missing, no finite number, or no declared category.
        """
        check_record(x)
        if self._schema.plain:
            raw = [v for name, declared in self.declarations.items() for v in _read(name, declared, x.get(name))]
            self._warn_of_more(x, self.declarations)
            out[:-1] = self.encoder.columns(np.array([raw], dtype=float))
        else:
            out[:-1] = self._schema.encode_raw(x)
        out[-1] = y

    def constants(self) -> list[object]:
        return [f"{piece.kind} {list(piece.at)}" for piece in self._schema.pieces]

    def frame(self, X: object) -> np.ndarray:
        """See `Features.frame`; values of X are raw.

        Raises `SchemaError` that names the feature if a column is missing or a value does not fit.
        """
        make = pl.DataFrame  # here, because an error below is one of a value
        names = self._schema.feature_columns
        columns = names_of(X)
        given = {str(name): name for name in (names if columns is None else columns)}
        numbers = {d.column for d in self._schema.declarations.values() if d.plain and d.is_number}
        raw = {}
        for name in names:
            if name not in given:
                continue
            found = column_of(X, names, given[name])
            column = None
            with contextlib.suppress(Exception):  # it may have a value in its message
                column = _numbers(found) if name in numbers else _texts(found)
            if column is None:
                raise SchemaError(f"feature {name!r}: expected numbers or text")
            raw[name] = column
        return self._schema.encode_features(make(raw))

    def array(self, X: np.ndarray) -> np.ndarray:
        """See `Features.array`. NaN is a gap.

        Raises `SchemaError` if the schema has a feature that is no number, and for values that do not fit.
        """
        for declared in self._schema.declarations.values():
            if not declared.is_number or declared.part is not None or declared.decimal is not None:
                raise SchemaError(
                    f"X: an array of numbers has no {declared.name!r}, which is no plain number: learn_many and"
                    " predict_many take a table; learn_encoded and predict_encoded take columns that are encoded"
                )
        names = self._schema.feature_columns
        if X.shape[1] != len(names):
            raise SchemaError(f"X: expected {len(names)} columns, got {X.shape[1]}")
        gaps = bool(np.isnan(X).any())
        columns = [pl.Series(name, X[:, j], nan_to_null=gaps) for j, name in enumerate(names)]
        return self._schema.encode_features(pl.DataFrame(columns))

    def makes(self, X: np.ndarray) -> bool:
        """Whether rows X (n, p) of finite numbers are such as records give, if categories are codes.

        Codes are of declared categories, buckets have at most one 1, and all else is in [-1, 1].
        """
        j = 0
        for declared in self.declarations.values():
            mine = X[:, j : j + len(declared.pieces)]
            j += len(declared.pieces)
            low, high = (0, len(declared.values) - 1) if declared.codes else (-1, 1)
            whole = not (declared.codes or declared.hashed) or bool(np.all(mine == np.floor(mine)))
            if not (whole and mine.min(initial=low) >= low and mine.max(initial=high) <= high):
                return False
            if declared.hashed and (mine.min(initial=0) < 0 or np.any(mine.sum(axis=1) > 1)):
                return False
        return True


def _series(column: object) -> Any:
    """A column of a frame or an array as a series of polars, which copies no numbers and no text of polars."""
    if isinstance(column, pl.Series):
        return column
    typed = not np.ma.is_masked(column) and getattr(column, "dtype", None) in ("float64", "int64", "uint64")
    return pl.Series(np.asarray(column) if typed else _listed(column), strict=False)


def _listed(column: Any) -> list[Any]:
    return column.to_list() if hasattr(column, "to_list") else column.tolist()


def _numbers(column: object) -> object:
    """Numbers, or their text, as they are; truth values and decimals as floats; null for None and pandas' NA."""
    found = _series(column)
    if found.dtype in (pl.Float64, pl.Int64, pl.UInt64, pl.Null, pl.String):
        return found
    return pl.Series([None if is_missing(value) else float(value) for value in _listed(column)], dtype=pl.Float64)


def _texts(column: object) -> object:
    """Values as the text that a CSV file would have; null for None, NaN and other missing values."""
    from streamdp.data.columns import text_of

    if isinstance(column, pl.Series) and column.dtype in (pl.String, pl.Categorical, pl.Enum):
        return column.cast(pl.String)
    return pl.Series([text_of(None if is_missing(v) else v) for v in _listed(column)], dtype=pl.String)


def _read(name: object, declared: "Declaration", value: object) -> list[float]:
    """The raw values of a feature: a number, the code of its category or bucket, or the bytes of its text."""
    if declared.is_number:
        return [_number(name, value)]
    if is_missing(value) or (value == "" and not declared.codes):
        raise SchemaError(f"feature {name!r}: missing")
    text = _text(name, value)
    if declared.codes:
        if text not in declared.codes:
            raise SchemaError(f"feature {name!r}: expected one of the {len(declared.values)} declared categories")
        return [declared.codes[text]]
    with contextlib.suppress(UnicodeEncodeError):  # it has the text in its message
        return declared.read_texts([text]).ravel().tolist()
    raise SchemaError(f"feature {name!r}: expected text, got half of a surrogate pair")


def _text(name: object, value: object) -> str:
    """A category as the text that a CSV file would have."""
    from streamdp.data.columns import text_of

    with contextlib.suppress(Exception):  # an object may raise anything, with itself in the message
        return str(text_of(value))
    raise SchemaError(f"feature {name!r}: expected text, a number or a truth value")


def features_of(
    declared: Sequence[object] | Mapping[Any, object],
    owner: str,
    targets: Targets = None,
    coded: bool = False,
) -> Features:
    """Return the features that are `declared`, a list of names or a public schema; the rest is as for `SchemaFeatures`.

    Raises `ConfigError` or `SchemaError` for a declaration that contradicts itself.
    """
    if isinstance(declared, Mapping):
        return SchemaFeatures(declared, owner, targets, coded)
    unordered = isinstance(declared, str | set | frozenset)  # each process has its own order of a set
    if unordered or not isinstance(declared, Iterable) or getattr(declared, "ndim", None) == 0:
        raise ConfigError(f"features: expected a list of names or a schema, got {type(declared).__name__}")
    return Features(list(declared), owner, targets)


def _number(name: object, value: object) -> float:
    if value is None:
        raise SchemaError(f"feature {name!r}: missing")
    found = number(f"feature {name!r}", value)
    if not math.isfinite(found):
        raise SchemaError(f"feature {name!r}: expected a finite number, got NaN or an infinity")
    return found


def _finite(name: object, value: object) -> float:
    if isinstance(value, float | np.floating) and math.isfinite(value):
        return float(value)
    if value is None or isinstance(value, str | bytes):  # text is a number in raw records only
        raise SchemaError(f"feature {name!r}: expected a number, got {type(value).__name__}")
    return _number(name, value)
