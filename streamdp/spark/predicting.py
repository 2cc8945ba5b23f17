"""Predictions of a committed model for a DataFrame of Spark. They read released numbers and spend nothing."""

import os
from functools import lru_cache

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from streamdp.errors import SchemaError
from streamdp.serving.predictor import Predicting
from streamdp.serving.publish import committed
from streamdp.serving.snapshots import Model, restore, snapshot_from_json, snapshot_to_json
from streamdp.spark.records import texts_and_numbers
from streamdp.store.snapshot import Snapshot


def predict(
    df: DataFrame, snapshot: Snapshot | Model | str | os.PathLike[str], *, column: str = "prediction"
) -> DataFrame:
    """Return a DataFrame, bounded or a stream, with the predictions of a committed model added.

    `df` has the raw feature columns of the job's schema; `snapshot` is a committed snapshot, a restored model, or the
    path of a store. The added `column` is a number, or the label of a class. A classifier with probabilities adds a
    column `<column>_<class>` for each class. A row that does not fit the schema gets null. Raises `SchemaError` if a
    feature's column is missing, or an added one exists; and the errors of `serving.publish.committed`.
    """
    if isinstance(snapshot, Snapshot):
        model = restore(snapshot)
    else:
        model = snapshot if isinstance(snapshot, Model) else committed(os.fspath(snapshot))
    predictor = Predicting(model)
    added = [column, *(f"{column}_{label}" for label in predictor.labels)]
    names = [name.casefold() for name in (*df.columns, *added)]  # Spark compares names without case
    if not column.strip():
        raise SchemaError("column: expected a name, got an empty one")
    if taken := [name for name in added if names.count(name.casefold()) > 1]:
        raise SchemaError(f"the result would have two columns of the name {taken[0]!r}: choose another `column`")
    kinds = [st.DoubleType() if predictor.classes is None else st.StringType(), *([st.DoubleType()] * len(added[1:]))]
    schema = st.StructType([st.StructField(f"p{i}", kind) for i, kind in enumerate(kinds)])
    text, p = snapshot_to_json(model.snapshot), "streamdp_prediction"
    while p in names:
        p += "_"

    def of(records: pa.Array) -> pa.Array:
        return _predicted(text, records)

    features = texts_and_numbers(df, predictor.columns, ())
    rows = sf.struct(*[value.alias(f"c{i}") for i, value in enumerate(features.values())])
    more = df.withColumn(p, sf.arrow_udf(of, schema)(rows))  # type: ignore[attr-defined]
    return more.select("*", *[sf.col(f"{p}.p{i}").alias(name) for i, name in enumerate(added)]).drop(p)


@lru_cache(maxsize=4)
def _predictor(text: str) -> Predicting:
    return Predicting(restore(snapshot_from_json(text)))


def _predicted(text: str, records: pa.Array) -> pa.Array:
    predictor = _predictor(text)
    named = zip(predictor.columns, records.flatten(), strict=True)
    frame = pl.DataFrame([pl.Series(name, pl.from_arrow(values), dtype=pl.String) for name, values in named])
    found = predictor.every(predictor.encode(frame), frame.height)
    kinds = [pa.float64() if predictor.classes is None else pa.string(), *[pa.float64()] * len(predictor.labels)]
    columns = [pa.array(column, kind) for column, kind in zip(found, kinds, strict=True)]
    return pa.StructArray.from_arrays(columns, [f"p{i}" for i in range(len(columns))])
