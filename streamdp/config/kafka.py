"""The Kafka part of a job in writing, and what it builds. Secrets come from the environment or from files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from streamdp.config.file import FileSourceConfig
from streamdp.config.settings import Settings
from streamdp.errors import ConfigError

if TYPE_CHECKING:
    from connectors.files import DeadLetterFile
    from connectors.kafka import KafkaSource
    from connectors.kafkasink import DeadLetterTopic, SnapshotTopic
    from streamdp.data.records import DeadLetter, Encoder, Shard

BOOTSTRAP = "STREAMDP_KAFKA"
"""The environment variable with the brokers of a job that names none."""

_SECRETS = ("password", "token", "secret")


class KafkaClientConfig(Settings):
    """How to reach the brokers."""

    brokers: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("options")
    @classmethod
    def _no_secrets(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name, value in options.items():
            problem = None
            if isinstance(value, Mapping):
                if len(value) != 1 or not {"env", "file"}.issuperset(value):
                    problem = "expected a value, {env: NAME} or {file: PATH}"
            elif any(word in name.lower() for word in _SECRETS):
                problem = "a secret must be {env: NAME} or {file: PATH}, not written here"
            if problem is not None:
                detail = InitErrorDetails(type=PydanticCustomError("option", problem), loc=(name,), input=None)
                raise ValidationError.from_exception_data("options", [detail])  # with the line of the option
        return options

    @property
    def servers(self) -> str:
        """The brokers. Raises `ConfigError` where nobody named them."""
        found = self.brokers or os.environ.get(BOOTSTRAP)
        if not found:
            raise ConfigError(f"source.brokers: missing setting; give it, or set {BOOTSTRAP} to host:port")
        return found

    def client_options(self) -> dict[str, Any]:
        """`options` with the secrets read. Raises `ConfigError` where one is not there."""
        return {name: _secret(f"source.options.{name}", value) for name, value in self.options.items()}

    def security_options(self) -> dict[str, Any]:
        """Those of `options` that producers need as well."""
        shared = ("security_protocol", "sasl_", "ssl_", "client_id", "api_version")
        return {name: value for name, value in self.client_options().items() if name.startswith(shared)}

    def for_file(self, path: str) -> FileSourceConfig:
        """How a public file of the same records is read."""
        lines = path.removesuffix(".gz").endswith((".jsonl", ".ndjson"))
        return FileSourceConfig(type="jsonl" if lines else "csv", path=path)


class KafkaSourceConfig(KafkaClientConfig):
    """A topic of JSON or Avro messages, read by a group of workers. See `connectors.kafka`.

    `brokers` is `host:port[,host:port]`, by default what STREAMDP_KAFKA says. `subject_from` says where the column
    `schema.subject` is: the message's `key` (the default), or the field of that name in the `value`. `budget_header`
    is a header with what the record may spend. `options` are those of `kafka.KafkaConsumer`; a value may be
    `{env: NAME}` or `{file: PATH}`, and a password must be. `dead_letters` is a file, `dead_letter_topic` a topic;
    `publish_topic` a compacted topic for the committed snapshots. With `format: avro`, `avro_schema` is the .avsc file
    of the messages, and `avro_framing` says what stands before a value: nothing, or the 5 bytes that Confluent's
    serializers write. See `connectors.avrorows`.
    """

    type: Literal["kafka"]
    topic: str = Field(min_length=1)
    group: str | None = Field(default=None, min_length=1)
    subject_from: Literal["key", "value"] = "key"
    budget_header: str | None = None
    start: Literal["earliest", "latest"] = "earliest"
    on_missing: Literal["stop", "earliest", "latest"] = "stop"
    max_bad_share: float | None = Field(default=None, ge=0, le=1)
    max_bad_in_a_row: int | None = Field(default=10_000, ge=1)
    dead_letters: str | None = None
    dead_letter_topic: str | None = None
    keep_payload: bool = False
    publish_topic: str | None = None
    format: Literal["json", "avro"] = "json"
    avro_schema: str | None = Field(default=None, min_length=1, validate_default=True)
    avro_framing: Literal["none", "confluent"] = "none"

    @field_validator("dead_letter_topic")
    @classmethod
    def _one_place(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("dead_letters") is not None:
            raise ValueError("expected dead_letters (a file) or dead_letter_topic, not both")
        return value

    @field_validator("keep_payload")
    @classmethod
    def _has_place(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("dead_letters") is None and info.data.get("dead_letter_topic") is None:
            raise ValueError("needs dead_letters or dead_letter_topic, to keep them in")
        return value

    @field_validator("avro_schema")
    @classmethod
    def _with_avro(cls, value: str | None, info: ValidationInfo) -> str | None:
        form = info.data.get("format")
        if form == "avro" and value is None:
            raise ValueError("format avro needs the .avsc file of the messages")
        if form == "json" and value is not None:
            raise ValueError("needs format: avro")
        return value

    @field_validator("avro_framing")
    @classmethod
    def _framed(cls, value: str, info: ValidationInfo) -> str:
        if value != "none" and info.data.get("format") == "json":
            raise ValueError("needs format: avro")
        return value

    def build_source(self, job: str, encoder: Encoder, key_is_subject: bool) -> KafkaSource:
        """Connect. Raises as `connectors.kafka.KafkaSource` and `connectors.avrorows.AvroDecoder` do."""
        from connectors.kafka import KafkaSource

        other: dict[str, Any] = {}
        if self.avro_schema is not None:
            from connectors.avrorows import AvroDecoder

            other["decode"] = AvroDecoder(self.avro_schema, framing=self.avro_framing)
        return KafkaSource(
            self.topic,
            encoder,
            bootstrap_servers=self.servers,
            group=self.group or f"streamdp-{job}",
            key_is_subject=key_is_subject,
            budget_header=self.budget_header,
            start=self.start,
            on_missing=self.on_missing,
            keep_payload=self.keep_payload,
            options=self.client_options(),
            **other,
        )

    def build_dead_letters(self) -> DeadLetterTopic | ShardedLetterFile | None:
        """Where dead letters go, if anywhere. Raises `SourceError` where it cannot be written."""
        from connectors.files import DeadLetterFile

        if self.dead_letters is not None:
            return ShardedLetterFile(DeadLetterFile(self.dead_letters))
        if self.dead_letter_topic is not None:
            from connectors.kafkasink import DeadLetterTopic

            return DeadLetterTopic(self.dead_letter_topic, self.servers, self.security_options())
        return None

    def build_snapshot_topic(self) -> SnapshotTopic | None:
        """The topic of committed snapshots, if there is to be one."""
        from connectors.kafkasink import SnapshotTopic

        topic = self.publish_topic
        return None if topic is None else SnapshotTopic(topic, self.servers, self.security_options())


class ShardedLetterFile:
    """A file of dead letters for the shards of a topic; the workers of one machine may share it."""

    def __init__(self, file: DeadLetterFile) -> None:
        self._file = file
        self._lock = open(file.path, "rb")  # noqa: SIM115 - until close
        self._waiting: list[tuple[Sequence[DeadLetter], Shard]] = []

    def write(self, letters: Sequence[DeadLetter], shard: Shard) -> None:
        """Keep letters for `commit`."""
        self._waiting.append((letters, shard))

    def commit(self) -> None:
        """Write what waits, while no other worker does: the lines of two would run into each other."""
        import fcntl

        if not self._waiting:
            return
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            for letters, shard in self._waiting:
                self._file.write(letters, topic=shard.topic, partition=shard.partition)
            self._file.commit()
            self._waiting.clear()
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        self._file.close()
        self._lock.close()


def _secret(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "env" in value:
        found = os.environ.get(str(value["env"]))
        if found is None:
            raise ConfigError(f"{name}: the environment variable {value['env']} is not set")
        return found
    try:
        return Path(str(value["file"])).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"{name}: cannot read the file {value['file']}") from None
