"""The source part of a job configuration that reads Kafka. Secrets come from the environment or from files."""

from __future__ import annotations

import os
import re
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from streamdp.config.settings import PROXY, BadRecordsConfig, Secret, Settings, SourceOptions, like, secret
from streamdp.data.records import Batch, Encoder, Shard
from streamdp.errors import ConfigError

if TYPE_CHECKING:
    from connectors.avroschemas import Writers
    from connectors.kafka import KafkaSource
    from connectors.kafkasink import SnapshotTopic, TopicReader
    from connectors.letterfile import DeadLetterFile
    from connectors.lettertopic import DeadLetterTopic

BOOTSTRAP = "STREAMDP_KAFKA"
"""The environment variable with the brokers of a job that does not name its brokers."""

_AT_ONCE = 500  # messages in memory, which may be large
_BROKER = r"\s*([^\s,:\[\]]+(:\d{1,5})?|\[[^\s,\]]+\](:\d{1,5})?|[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f.]*)\s*"


def check_brokers(brokers: str) -> str:
    """Return the `brokers`. Raises `ConfigError` unless each of them, between commas, is HOST:PORT or HOST."""
    if not re.fullmatch(f"{_BROKER}(,{_BROKER})*", brokers):
        raise ConfigError(f"brokers: expected HOST:PORT[,HOST:PORT], got {brokers!r}")
    return brokers


class KafkaClientConfig(SourceOptions):
    """How to connect to the brokers.

    - `brokers`: `host:port[,host:port]`. None: the value of the environment variable STREAMDP_KAFKA.
    - `options`: options of `kafka.KafkaConsumer`, also for `client: confluent`. A value may be `{env: NAME}` or `{file:
      PATH}`; a password must be.
    """

    brokers: str | None = None

    @property
    def servers(self) -> str:
        """The brokers. Raises `ConfigError` if neither the job nor the environment names them, or not as HOST:PORT."""
        found = self.brokers or os.environ.get(BOOTSTRAP)
        if not found:
            raise ConfigError(f"source.brokers: missing setting; add it, or set {BOOTSTRAP} to host:port")
        return check_brokers(found)

    def security_options(self) -> dict[str, object]:
        """The part of `options` that producers need too."""
        shared = ("security_protocol", "sasl_", "ssl_", "client_id", "api_version")
        return {name: value for name, value in self.client_options().items() if name.startswith(shared)}


class SchemaRegistryConfig(Settings):
    """A schema registry that has the HTTP API of Confluent's, and a user of it. See `connectors.schemaregistry`.

    - `url`: the address under which it has `/schemas/ids/{id}`.
    - `user`: the name for basic authentication. None: no authentication.
    - `password`: `{env: NAME}` or `{file: PATH}`.
    - `proxy`: the address of a proxy to ask it through. None: no proxy, whatever the environment says.
    """

    url: str = Field(
        pattern=like(r"^https?://[^/@?#]+(/[^@?#]*)?$", "an address without a login, as https://HOST/PATH")
    )
    user: str | None = Field(default=None, min_length=1)
    password: Secret | None = None
    proxy: str | None = Field(default=None, pattern=PROXY)


class KafkaSourceConfig(KafkaClientConfig, BadRecordsConfig):
    """A topic of JSON or Avro messages that a group of workers reads. See `connectors.kafka`.

    - `brokers`, `options`: see `KafkaClientConfig`.
    - `client`: what reads the messages: `kafka-python`, or `confluent`, which is several times as fast (extra
      `kafka-fast`).
    - `group`: the consumer group. None: `streamdp-<job>`.
    - `subject_from`: where the subject is: in the message's `key`, or in the `value`, in the field that
      `schema.subject` names.
    - `start`: where a partition without a commit begins.
    - `on_missing`: what to do if the broker no longer has the next offset: `stop`, or continue at the `earliest` or
      `latest` one.
    - `max_bad_share`, `dead_letters`, `keep_payload`: see `BadRecordsConfig`. The messages before the first commit
      decide.
    - `max_bad_in_a_row`: stop if more consecutive messages of one partition are bad. None: no limit.
    - `dead_letter_topic`: a topic for dead letters, in place of a file.
    - `publish_topic`: a compacted topic for the committed snapshots. None: they are not published.
    - `format`: how values are encoded.
    - `json_framing`: what precedes a JSON value: nothing, or the 5 bytes that Confluent's serializers write. See
      `connectors.jsonrows`.
    - `schemas`: the .avsc files of the schemas that framed Avro values and keys were written with: a mapping of schema
      ids to paths, or a folder with `<id>.avsc` files. They are read at the start.
    - `schema_registry`: the registry that has these schemas: its URL, or a mapping as `SchemaRegistryConfig` describes.
    - `avro_schema`: the .avsc file of the schema that the job expects. Framed values of other schemas are resolved to
      it; None: each is read by its own. Without `schemas` and `schema_registry`, values have no frame, and all have
      this schema. See `connectors.avrorows`.
    """

    type: Literal["kafka"]
    topic: str = Field(min_length=1)
    client: Literal["kafka-python", "confluent"] = "kafka-python"
    group: str | None = Field(default=None, min_length=1)
    subject_from: Literal["key", "value"] = "key"
    start: Literal["earliest", "latest"] = "earliest"
    on_missing: Literal["stop", "earliest", "latest"] = "stop"
    max_bad_in_a_row: int | None = Field(default=10_000, ge=1)
    dead_letter_topic: str | None = None
    publish_topic: str | None = None
    format: Literal["json", "avro"] = "json"
    json_framing: Literal["none", "confluent"] = "none"
    schemas: str | dict[Annotated[int, Field(ge=0, lt=1 << 32)], str] | None = Field(default=None, min_length=1)
    schema_registry: SchemaRegistryConfig | None = None
    avro_schema: str | None = Field(default=None, min_length=1, validate_default=True)

    @property
    def name(self) -> str:
        """What messages call the source."""
        return self.topic

    @field_validator("dead_letter_topic")
    @classmethod
    def _one_place(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("dead_letters") is not None:
            raise ValueError("expected dead_letters (a file) or dead_letter_topic, not both")
        return value

    @field_validator("schema_registry", mode="before")
    @classmethod
    def _url_or_more(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("schemas", "schema_registry", "avro_schema")
    @classmethod
    def _with_avro(cls, value: object, info: ValidationInfo) -> object:
        if value is not None and info.data.get("format") == "json":
            raise ValueError("needs format: avro")
        if info.field_name == "schema_registry" and value is not None and info.data.get("schemas") is not None:
            raise ValueError("expected schemas or schema_registry, not both")
        if info.field_name == "avro_schema" and value is None and info.data.get("format") == "avro":
            places = ("schemas", "schema_registry")
            if all(info.data.get(place, "bad") is None for place in places):
                raise ValueError(
                    "format avro needs schemas or schema_registry for framed messages, or the .avsc file that all"
                    " messages without a frame were written with"
                )
        return value

    @field_validator("json_framing")
    @classmethod
    def _framed(cls, value: str, info: ValidationInfo) -> str:
        if value != "none" and info.data.get("format") == "avro":
            raise ValueError("needs format: json")
        return value

    def build_source(self, job: str, encoder: Encoder, key_is_subject: bool) -> KafkaSource:
        """Connect to the brokers.

        The name of the `job` is for the default name of the group. The `encoder` converts raw columns to numbers, and
        with `key_is_subject` the message's key is the subject of the record.

        Raises the errors of `connectors.kafka.KafkaSource` and of `connectors.avrorows.AvroDecoder`.
        """
        from connectors.kafka import KafkaSource

        other: dict[str, Any] = {}
        if self.format == "avro":
            from connectors.avrorows import AvroDecoder

            decoder = AvroDecoder(self.avro_schema, writers=self._writers())
            other |= {"decode": decoder, "framed_key": decoder.subject}
        if self.json_framing == "confluent":
            from connectors.jsonrows import encode_framed_json

            other["decode"] = encode_framed_json
        return KafkaSource(
            self.topic,
            encoder,
            bootstrap_servers=self.servers,
            group=self.group or f"streamdp-{job}",
            key_is_subject=key_is_subject,
            start=self.start,
            on_missing=self.on_missing,
            keep_payload=self.keep_payload,
            client=self.client,
            options=self.client_options(),
            **other,
        )

    def _writers(self) -> Writers | None:
        """The schemas of framed values. Raises `ConfigError` if a file or the registry's password cannot be read."""
        if self.schemas is not None:
            from connectors.avroschemas import read_schemas

            return read_schemas(self.schemas)
        if (registry := self.schema_registry) is None:
            return None
        from connectors.schemaregistry import SchemaRegistry

        password = secret("source.schema_registry.password", registry.password)
        return SchemaRegistry(registry.url, registry.user, password, registry.proxy)

    def latest(self, most: int) -> list[Any]:
        """About the latest `most` messages, as many of each partition; no consumer group is joined.

        Raises the errors of `connectors.kafkasink.TopicReader`.
        """
        with closing(self._reader()) as reader:
            return list(reader.some(most, latest=True)[1])

    def sample(self, job: str, encoder: Encoder, key_is_subject: bool, most: int) -> tuple[int, list[Batch]]:
        """Count the offsets of the topic, and decode about `most` messages as a worker of the job does.

        They are the earliest, or the latest with `start: latest`, as many of each partition. No consumer group is
        joined and nothing is committed. For `job`, `encoder` and `key_is_subject` see `build_source`, whose errors and
        those of `connectors.kafkasink.TopicReader` are raised.
        """
        plain = self.model_copy(update={"client": "kafka-python", "keep_payload": False})
        with closing(self._reader()) as reader, closing(plain.build_source(job, encoder, key_is_subject)) as source:
            size, some = reader.some(most, latest=self.start == "latest")
            parts = groupby(some, key=lambda m: (m.partition, m.offset // _AT_ONCE))
            return size, [source.decode(Shard(self.topic, number), list(part)) for (number, _), part in parts]

    def _reader(self) -> TopicReader:
        from connectors.kafkasink import TopicReader

        return TopicReader(self.topic, self.servers, self.client_options())

    def build_dead_letters(self) -> DeadLetterFile | DeadLetterTopic | None:  # type: ignore[override]
        """The file or topic of dead letters. None if there is none. Raises `SourceError` if it cannot be written."""
        if self.dead_letter_topic is None:
            return super().build_dead_letters()
        from connectors.lettertopic import DeadLetterTopic

        return DeadLetterTopic(self.dead_letter_topic, self.servers, self.security_options())

    def build_snapshot_topic(self) -> SnapshotTopic | None:
        """The topic of committed snapshots. None if there is none."""
        from connectors.kafkasink import SnapshotTopic

        topic = self.publish_topic
        return None if topic is None else SnapshotTopic(topic, self.servers, self.security_options())
