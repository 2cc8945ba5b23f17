"""The job file's page of the reference: each example is a job, and each key of a job has an example."""

from collections import defaultdict
from collections.abc import Iterable

import pytest
from pydantic import BaseModel

from streamdp.config.definition import Definition, StoredDefinition
from streamdp.config.http import CallsConfig
from streamdp.config.job import JobConfig, make_config
from streamdp.config.kafka import KafkaClientConfig
from streamdp.config.promise import Promise
from streamdp.config.publish import SinkConfig
from streamdp.config.schema import DescribedConfig
from streamdp.config.settings import (
    BadRecordsConfig,
    DeadLettersConfig,
    ReadConfig,
    Settings,
    SourceOptions,
    SourceSettings,
)
from streamdp.config.yaml12 import YamlText
from tests.support.documents import blocks
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "job.md"
EXAMPLES = {code.partition("\n")[0].removeprefix("# "): code for _, code in blocks(PAGE.read_text(encoding="utf-8"))}
BASES = (
    Definition, SourceSettings, DeadLettersConfig, BadRecordsConfig, ReadConfig, SinkConfig, DescribedConfig,
    SourceOptions, KafkaClientConfig, CallsConfig,
)  # fmt: skip
"""Their keys are those of classes that a job has parts of."""
OF_A_STORE = (StoredDefinition, Promise)


def config(name: str) -> JobConfig:
    return make_config(YamlText(EXAMPLES[name], name).data)


def kinds(of: type[Settings] = Settings) -> Iterable[type[Settings]]:
    """All classes of settings that a job has parts of."""
    for kind in of.__subclasses__():
        if kind not in (*BASES, *OF_A_STORE):
            yield kind
        yield from kinds(kind)


def given(part: object, found: dict[type, set[str]]) -> None:
    """Add the keys that a part of a job gives, by its class, with those of its own parts."""
    if isinstance(part, BaseModel):
        found[type(part)] |= part.model_fields_set
        part = dict(part)
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ():
        given(inner, found)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_job(name: str) -> None:
    assert config(name).job


def test_every_key_has_an_example() -> None:
    found: dict[type, set[str]] = defaultdict(set)
    for name in EXAMPLES:
        given(config(name), found)
    missing = {kind.__name__: sorted(kind.model_fields.keys() - found[kind]) for kind in set(kinds())}
    assert {kind: keys for kind, keys in missing.items() if keys} == {}
