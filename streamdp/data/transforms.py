"""The pieces of a feature: what each of its encoded columns is of its value.

Every constant of a piece is declared, so a column depends on no other record, and it lies in [-1, 1] as any other. A
piece is the one description of a column: `encoder` computes it here, devices and exported models compute the same.

=========  =======================  =================================================================================
kind       constants                value of the column, before it is mapped from its own range to [-1, 1]
=========  =======================  =================================================================================
linear     low, high                v, clipped to [low, high], as in the next three; from a knot on if low is one
log        low, high                ln v
asinh      low, high, scale         asinh(v / scale)
power      low, high, exponent      v^exponent
bin        low, high                1 for low <= v < high, else 0
sin, cos   period                   sin or cos of 2 pi v / period
level      index                    1 for this category, else 0
code                                the index of the category, not mapped, for statistics
bucket     index, count             1 for a text of which `buckets` is the index, else 0
byte       index, length            the byte at this place of the characters that fit in UTF-8; 0 after their end
product    columns, two or more     the product of other columns
=========  =======================  =================================================================================
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from streamdp.data.encoder import column_of, curve
from streamdp.errors import SchemaError, suggestion

CURVES = ("log", "asinh", "power")
"""The transforms of a number with bounds."""

EXCLUSIVE = ("bin", "level", "bucket")
"""Of the pieces of a feature of such a kind at most one is not 0 in a record."""

PERIODS = {"month": 12, "day": 31, "weekday": 7, "hour": 24, "minute": 60}
"""The periods of the parts of dates."""

MOST_COLUMNS = 10_000
"""The most columns that a hash or a product makes."""

MOST_BYTES = 64
"""The most bytes of a text."""


class Piece(NamedTuple):
    """One encoded column: its name, its kind and its constants (see above).

    A column of [-1, 1] is (value - origin) / unit: weights are shown for the value.
    """

    name: str
    kind: str
    at: tuple[float, ...]
    origin: float = 0.0
    unit: float = 1.0
    numeric: bool = False  # a number that estimators may scale, and not an indicator or a share of one
    own: bool = False  # what a group has of its own
    private: bool = False  # a number whose bounds are not declared

    def typical(self, centre: float, spread: float) -> tuple[float, float] | None:
        """Return a declared centre and spread of the values as those of a column; None for no number with bounds."""
        if self.kind == "linear":
            return (centre - self.origin) / self.unit, spread / self.unit
        if self.kind not in CURVES:
            return None
        low, middle, high = (column_of(self, v) for v in (centre - spread, centre, centre + spread))
        return middle, abs(high - low) / 2


def number_pieces(name: str, bounds: tuple[float, float], declared: Mapping[str, object]) -> tuple[Piece, ...]:
    """Return the pieces of the number `name` with `bounds`, and with the `transform` or `knots` that are `declared`."""
    transform, knots = declared.get("transform"), declared.get("knots")
    if transform is not None and knots is not None:
        raise SchemaError(f"{name!r}: expected transform or knots, not both")
    if knots is not None:
        return _hinges(name, bounds, _increasing(name, "knots", knots))
    kind, *more = ("linear",) if transform is None else curve_of(name, transform, bounds)
    shown = {"log": f"log({name})", "asinh": f"asinh({name}/{_shown(*more)})", "power": f"{name}^{_shown(*more)}"}
    piece = Piece(shown.get(kind, name), kind, (*bounds, *more), numeric=True)
    low, high = bounds if kind == "linear" else sorted(curve(kind, bound, *more or (0.0,)) for bound in bounds)
    middle = (low + high) / 2
    if not 0 < high - low < math.inf or (kind in CURVES and not low < middle < high):  # else it has no two ends
        raise SchemaError(f"{name!r}: expected bounds that differ after the transform, and are finite")
    return (piece._replace(origin=middle, unit=(high - low) / 2),)


def curve_of(name: str, transform: object, bounds: tuple[float, float]) -> tuple[Any, ...]:
    """Return a declared `transform` of `name` as kind and constant. Raises `SchemaError` if `bounds` do not fit."""
    given = {transform: None} if isinstance(transform, str) else transform
    if not isinstance(given, Mapping) or len(given) != 1 or (kind := next(iter(given))) not in CURVES:
        raise SchemaError(f"{name!r}: expected transform to be log, asinh, or a mapping: asinh: SCALE, power: EXPONENT")
    constant = given[kind]
    if kind == "log":
        if constant is not None or not bounds[0] > 0:
            raise SchemaError(f"{name!r}: log takes no constant, and needs bounds above 0")
        return (kind,)
    constant = _finite(name, kind, 1.0 if constant is None and kind == "asinh" else constant)
    if kind == "asinh" and not constant > 0:
        raise SchemaError(f"{name!r}: expected a positive scale of asinh")
    if kind == "power" and (constant in (0.0, 1.0) or bounds[0] < 0 or (constant < 0 and bounds[0] == 0)):
        raise SchemaError(
            f"{name!r}: expected an exponent that is not 0 or 1, with bounds from 0, or above 0 if negative"
        )
    return kind, constant


def _hinges(name: str, bounds: tuple[float, float], knots: tuple[float, ...]) -> tuple[Piece, ...]:
    """A piecewise linear function: the number, and what it is above each knot."""
    low, high = bounds
    if not low < knots[0] or not knots[-1] < high:
        raise SchemaError(f"{name!r}: expected knots between the bounds")
    above = ((name, low), *((f"{name} above {_shown(at)}", at) for at in knots))
    return tuple(Piece(shown, "linear", (at, high), (at + high) / 2, (high - at) / 2, True) for shown, at in above)


def bin_pieces(name: str, edges: object) -> tuple[Piece, ...]:
    """Return the pieces of the number `name` in bins with these `edges`: below the first one is the baseline."""
    places = (*_increasing(name, "bins", edges), math.inf)
    return tuple(Piece(f"{name}=[{_shown(a)},{_shown(b)})", "bin", (a, b)) for a, b in pairwise(places))


def cyclic_pieces(name: str, cyclic: object) -> tuple[Piece, ...]:
    """Return the pieces of the number `name` on a circle: `cyclic` is its period, or a part of a date."""
    period = PERIODS[cyclic] if isinstance(cyclic, str) and cyclic in PERIODS else _finite(name, "cyclic", cyclic)
    if not 1e-60 <= period <= 1e60:
        raise SchemaError(f"{name!r}: expected cyclic to be a period, or one of {', '.join(PERIODS)}")
    return tuple(Piece(f"{kind}({name})", kind, (float(period),), numeric=True) for kind in ("sin", "cos"))


def bucket_pieces(name: str, count: object) -> tuple[Piece, ...]:
    """Return the pieces of the text `name`, hashed to `count` buckets, of which the first is the baseline."""
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= MOST_COLUMNS:
        raise SchemaError(f"{name!r}: expected the number of buckets, from 2 to {MOST_COLUMNS}, as hash")
    return tuple(Piece(f"{name}#{k}", "bucket", (k, count)) for k in range(1, count))


def byte_pieces(name: str, length: object) -> tuple[Piece, ...]:
    """Return the pieces of the first `length` bytes of the text `name`."""
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= MOST_BYTES:
        raise SchemaError(f"{name!r}: expected the number of bytes, from 1 to {MOST_BYTES}, as text")
    return tuple(Piece(f"{name}[{k}]", "byte", (k, length), 127.5, 127.5) for k in range(length))


def product_pieces(name: str, factors: object, pieces: Mapping[str, tuple[int, Sequence[Piece]]]) -> list[Piece]:
    """Return the pieces of the product `name` of the features `factors`, one for each combination of their columns.

    `pieces` has the first column and the pieces of each feature that may be a factor.
    """
    listed = list(factors) if isinstance(factors, Sequence) and not isinstance(factors, str) else []
    unknown = [factor for factor in listed if factor not in pieces]
    if unknown or not 2 <= len(set(listed)) == len(listed):
        got = f", got {unknown[0]!r}{suggestion(str(unknown[0]), map(str, pieces))}" if unknown else ""
        raise SchemaError(f"{name!r}: expected product to name two or more other features that are no products{got}")
    if math.prod(len(pieces[factor][1]) for factor in listed) > MOST_COLUMNS:
        raise SchemaError(f"{name!r}: expected a product of at most {MOST_COLUMNS} columns")
    found: list[tuple[tuple[int, ...], tuple[Piece, ...]]] = [((), ())]
    for factor in listed:
        start, own = pieces[factor]
        found = [((*at, start + k), (*of, piece)) for at, of in found for k, piece in enumerate(own)]
    return [
        Piece(
            " x ".join(piece.name for piece in of),
            "product",
            at,
            unit=math.prod(piece.unit for piece in of),
            numeric=any(piece.numeric for piece in of),
            private=any(piece.private for piece in of),
        )
        for at, of in found
    ]


def _increasing(name: str, what: str, given: object) -> tuple[float, ...]:
    listed = given if isinstance(given, Sequence) and not isinstance(given, str) else ()
    numbers = tuple(_finite(name, what, item) for item in listed)
    if not numbers or not all(a < b for a, b in pairwise(numbers)):
        raise SchemaError(f"{name!r}: expected {what} as increasing numbers")
    return numbers


def _finite(name: str, what: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise SchemaError(f"{name!r}: expected a finite number for {what}")
    return float(given)


def _shown(number: float = 0.0) -> str:
    return repr(number).removesuffix(".0")
