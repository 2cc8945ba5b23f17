"""The records of a DataFrame, with the shard of each and its place in the order.

All records of a person are in one shard of a batch, because one executor decides which of them fit the cap. Spellings
of one person (`subjects.subject_bytes`) have one hash, under a key that is drawn for each attempt of a batch. The next
batch may put a person into another shard: spends travel with the person, and the state of a shard holds no person.

Without a cap, a record's shard is a hash of its subject as Spark computes it. Without a subject, records are dealt to
the shards in turn, by their place.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from streamdp.data.columns import Faults, people
from streamdp.data.schema import Schema
from streamdp.data.subjects import FLOATS, hash_people, subjects_bytes
from streamdp.errors import SchemaError, suggestion

SHARD, PLACE, LOAD = "shard", "place", "load"
"""The columns beside those of the schema: the shard, the place in the order of the DataFrame, and a shard's load."""


def prepared(frame: DataFrame, schema: Schema, shards: int, key: bytes | None, salt: int) -> DataFrame:
    """Select the columns of the schema, as texts and numbers, with `SHARD` and `PLACE`.

    The `frame` is no stream; it goes to so many `shards`. `key` is for the hashes of subjects if the job has a cap,
    else None; `salt` is a random number for those without a cap. Raises `SchemaError` for a column that is missing or
    of a type without text.
    """
    columns = texts_and_numbers(frame, schema.columns, schema.numeric_columns, schema.subject)
    place = sf.monotonically_increasing_id()
    if schema.subject is None:
        shard = sf.pmod(place, sf.lit(shards))
    elif key is None:
        shard = sf.pmod(sf.xxhash64(sf.lit(salt), columns[schema.subject]), sf.lit(shards))
    else:
        shard = _sharding(schema.subject_type, key, shards)(columns[schema.subject])
    # Between machines the columns have numbers as names, with which no user's name can clash.
    named = [column.alias(f"c{i}") for i, column in enumerate(columns.values())]
    return frame.select(*named, shard.cast("long").alias(SHARD), place.alias(PLACE))


def texts_and_numbers(
    frame: DataFrame, names: Sequence[str], numeric: Collection[str], subject: str | None = None
) -> dict[str, Column]:
    """Return columns by name: Float64 or valid text, the two kinds that an `Encoder` reads.

    The `names` may be paths with dots; those in `numeric` may be numbers. `subject` is the column of subjects. Raises
    `SchemaError` for a column that is missing or of a type without text, and for subjects that are floats.
    """
    return {name: _column(frame, name, name in numeric, name == subject) for name in names}


def _column(frame: DataFrame, name: str, numeric: bool, subject: bool) -> Column:
    if name in frame.columns:
        found, kind = sf.col(f"`{name}`"), frame.schema[name].dataType
    else:
        found = sf.col(".".join(f"`{part}`" for part in name.split(".")))
        kind = _type(frame.schema, name.split("."), name, frame.columns)
    floats = isinstance(kind, st.FloatType | st.DoubleType) or (isinstance(kind, st.DecimalType) and kind.scale > 0)
    if subject and floats:
        raise SchemaError(f"the subject {name!r} is a column of floats: {FLOATS}")
    if isinstance(kind, st.NumericType) and numeric:
        return found.cast("double")
    if isinstance(kind, st.StringType):
        return sf.try_validate_utf8(found)
    if isinstance(kind, st.BinaryType):
        return sf.try_validate_utf8(found.cast("string"))
    if isinstance(kind, st.ArrayType | st.MapType | st.StructType):
        raise SchemaError(f"column {name!r}: expected numbers or text, got the type {kind.typeName()}")
    return found.cast("string")


def _type(kind: st.DataType, parts: Sequence[str], name: str, known: Sequence[str]) -> st.DataType:
    for part in parts:
        if not isinstance(kind, st.StructType) or part not in kind.names:
            raise SchemaError(f"the DataFrame lacks the column {name!r}{suggestion(name, known)}")
        kind = kind[part].dataType
    return kind


def canonical(subjects: pl.Series, subject_type: str) -> list[str | None]:
    """Return subjects in the form of the schema's `subject_type`; None for those that do not fit."""
    faults = Faults(len(subjects))
    found = people(subjects, subject_type == "integer", faults).to_list()
    return [text if good else None for text, good in zip(found, faults.good.tolist(), strict=True)]


def _sharding(subject_type: str, key: bytes, shards: int) -> Any:

    def shard(subjects: pa.Array) -> pa.Array:
        texts = canonical(pl.Series(pl.from_arrow(subjects)), subject_type)
        hashes, _ = hash_people(subjects_bytes(texts), key)
        return pa.array((hashes[:, 0] % np.uint64(shards)).astype(np.int64))

    return sf.arrow_udf(shard, "long")  # type: ignore[attr-defined]
