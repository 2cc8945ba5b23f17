"""The DataFrame of a job that says what Spark reads, and the session for it."""

import os
import sys
from collections.abc import Mapping

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from connectors.kafkakeys import subjects_of
from streamdp.config.job import JobConfig
from streamdp.config.spark import SparkSourceConfig
from streamdp.errors import ConfigError, SourceError, raise_alone

KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13"
"""Spark's connector for Kafka, which has the version of PySpark. Spark fetches it from Maven, unless jars are given."""


def session(config: JobConfig, master: str | None, settings: Mapping[str, str]) -> tuple[SparkSession, bool]:
    """Start a session, or take the one of this process; returns it, and whether it is new.

    `master` is the address of the cluster, such as `local[4]` or `spark://HOST:7077`. None: that of spark-submit. A
    local one listens on the loopback address only. `settings` are further ones of Spark. Raises `SourceError` if Spark
    does not start.
    """
    if (active := SparkSession.getActiveSession()) is not None:
        return active, False
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"streamdp {config.job}")
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):  # Spark gives blocks with records to every process that reaches its ports
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    given = {"spark.ui.showConsoleProgress": "false", **settings}
    if getattr(config.source, "format", None) == "kafka" and not given.keys() & {"spark.jars", "spark.jars.packages"}:
        given["spark.jars.packages"] = f"{KAFKA}:{pyspark.__version__}"
    for name, value in given.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate(), True
    except Exception as error:  # noqa: BLE001 - also errors of the JVM and of its start
        raise_alone(SourceError(f"Spark did not start ({type(error).__name__}); its log has the reason"))


def read(spark: SparkSession, config: JobConfig) -> DataFrame:
    """The DataFrame of a job with `source.format`, or `ConfigError`; `SourceError` if Spark cannot read it."""
    source = config.source
    if not isinstance(source, SparkSourceConfig) or source.format is None:
        raise ConfigError("source.format: missing setting; a job without it is for programs that have a DataFrame")
    options = {name: str(value) for name, value in source.client_options().items()}
    if source.stream and source.format != "kafka":
        spark.conf.set("spark.sql.streaming.schemaInference", "true")
    try:
        reader = (spark.readStream if source.stream else spark.read).format(source.format).options(**options)
        frame: DataFrame = reader.load(source.path) if source.path is not None else reader.load()
    except PySparkException as error:
        name = error.getCondition() or type(error).__name__
        raise_alone(SourceError(f"Spark cannot read {source.path or source.format} ({name}); check source.options"))
    return _messages(frame, config, source) if source.format == "kafka" else frame


def _subjects(keys: pa.Array) -> pa.Array:
    found = subjects_of(keys.to_pylist())
    texts = [
        one if one is None or isinstance(one, bytes) else str(one).encode("utf-8", "surrogatepass") for one in found
    ]
    return pa.array(texts, pa.binary())


def _messages(frame: DataFrame, config: JobConfig, source: SparkSourceConfig) -> DataFrame:
    """The columns of the schema from messages of JSON objects. What is no JSON object has no values."""
    schema = config.build_schema()
    names = [name for name in schema.columns if not (name == schema.subject and source.subject_from == "key")]
    if nested := [name for name in names if "." in name]:
        raise ConfigError(f"schema: the column {nested[0]!r} of a message: a path with dots needs streamdp run")
    fields = st.StructType([st.StructField(name, st.StringType()) for name in names])
    text = sf.try_validate_utf8(sf.col("value").cast("string"))
    columns = [sf.col(f"record.`{name}`").alias(name) for name in names]
    if schema.subject is not None and source.subject_from == "key":
        columns.append(sf.arrow_udf(_subjects, "binary")(sf.col("key")).alias(schema.subject))  # type: ignore[attr-defined]
    return frame.withColumn("record", sf.from_json(text, fields)).select(*columns)
