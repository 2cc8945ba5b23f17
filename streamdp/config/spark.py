"""The source part of a job configuration that Spark reads. Secrets come from the environment or from files."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from streamdp.config.settings import Settings, SourceOptions
from streamdp.runtime.defaults import BAD_SHARE


class TriggerConfig(Settings):
    """When a stream takes its next batch; a trigger of Spark. At most one of them.

    - `processing_time`: as often as this, such as `10 seconds`. By default as soon as the last batch is committed.
    - `available_now`: take all that is there now, in several batches, and stop.
    """

    processing_time: str | None = None
    available_now: Literal[True] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.processing_time is not None and self.available_now is not None:
            raise ValueError("expected processing_time or available_now, not both")
        return self

    def arguments(self) -> dict[str, Any]:
        """The arguments for Spark; none by default."""
        named = {"processingTime": self.processing_time, "availableNow": self.available_now}
        return {name: value for name, value in named.items() if value is not None}


class SparkSourceConfig(SourceOptions):
    """What Spark reads. A program that has a DataFrame needs `shards` only.

    - `max_bad_share`: stop a job that has learned nothing, before anything is spent, if a larger share, from 0 to 1, of
      its first batch does not fit the schema. None: no limit.
    - `options`: options of Spark's reader. A value may be `{env: NAME}` or `{file: PATH}`; a password must be.
    - `format`: the format of Spark's reader, such as `parquet`, `csv`, `json` or `kafka`. None: a program gives a
      DataFrame.
    - `path`: the file or folder to read. None if the format needs no path.
    - `stream`: whether to read as a stream, in batches, until it is stopped.
    - `checkpoint`: the folder where Spark notes which batches it has read; for a stream.
    - `shards`: how many models are learned side by side; the model is their average. None: as many as the store has,
      and for a new store the default parallelism of the cluster.
    - `subject_from`: with `format: kafka`: whether the subject is the message's `key`, or in the `value`, in the field
      that `schema.subject` names.
    """

    type: Literal["spark"]
    max_bad_share: float | None = Field(default=BAD_SHARE, ge=0, le=1)
    format: str | None = Field(default=None, min_length=1)
    path: str | None = Field(default=None, min_length=1)
    stream: bool = False
    checkpoint: str | None = Field(default=None, min_length=1)
    trigger: TriggerConfig = TriggerConfig()
    shards: int | None = Field(default=None, ge=1, le=10_000)
    subject_from: Literal["key", "value"] = "key"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.stream != (self.checkpoint is not None):
            raise ValueError("a stream needs checkpoint, a folder; without stream: true there is none")
        if not self.stream and self.trigger != TriggerConfig():
            raise ValueError("trigger needs stream: true")
        if self.subject_from != "key" and self.format != "kafka":
            raise ValueError("subject_from is for format: kafka")
        return self
