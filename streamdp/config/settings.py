"""What several parts of a job configuration share: immutable settings, secrets, and what becomes of bad records."""

import os
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError, PydanticKnownError

from streamdp.errors import ConfigError
from streamdp.runtime.defaults import BAD_SHARE

if TYPE_CHECKING:
    from connectors.letterfile import DeadLetterFile
    from streamdp.data.records import Encoder, Source

_SECRETS = ("password", "token", "secret", "jaas")


FORMS: dict[str, str] = {}
"""What to write in place of a text that does not fit a pattern, by the pattern."""


def like(pattern: str, form: str) -> str:
    """Return a `pattern` of texts; errors say that the `form` is expected, as "a table, as TABLE"."""
    FORMS[pattern] = form
    return pattern


PROXY = like(r"^https?://[^/@?#]+/?$", "the address of a proxy without a login, as http://HOST:PORT")


Secret = Annotated[dict[Literal["env", "file"], str], Field(min_length=1, max_length=1)]
"""Where a secret is: `{env: NAME}` or `{file: PATH}`."""


class Settings(BaseModel):
    """Immutable settings that refuse unknown keys.

    Error messages do not show inputs, because a setting may be a secret. The key and the line locate the error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)

    @field_validator("*", mode="wrap")
    @classmethod
    def _as_written(cls, value: object, read: Callable[[object], object]) -> object:
        found = read(value)
        if _is_misread(value, found):
            raise PydanticKnownError("float_parsing")
        return found


def _is_misread(value: object, found: object) -> bool:
    """Whether numbers were `found` in a `value` that says none: 0_5, which is text in YAML, as 5, and true as 1."""
    if isinstance(value, dict) and isinstance(found, dict):
        value, found = list(value.values()), list(found.values())
    if isinstance(value, list | tuple) and isinstance(found, list | tuple):
        return any(map(_is_misread, value, found))
    number = isinstance(found, int | float) and not isinstance(found, bool)
    return number and (isinstance(value, bool) or (isinstance(value, str) and "_" in value))


class SourceSettings(Settings):
    """What each source says of itself; a store keeps it."""

    own_budgets: ClassVar[bool] = False
    """Whether records may bring budgets of their own without `schema.budget`."""

    @property
    def written(self) -> dict[str, object] | None:
        """How its files are written, as settings of a file; None: as usual, or there are none."""
        return None


class DeadLettersConfig(SourceSettings):
    """Where the positions of bad records are kept.

    - `dead_letters`: a file for the positions of bad records. None: they are only counted.
    """

    dead_letters: str | None = None

    def build_dead_letters(self) -> "DeadLetterFile | None":
        """The file of dead letters. None if there is none. Raises `SourceError` if it cannot be written."""
        from connectors.letterfile import DeadLetterFile

        return None if self.dead_letters is None else DeadLetterFile(self.dead_letters)


class BadRecordsConfig(DeadLettersConfig):
    """Bad records: the share that stops a run, and what is kept of them. See `DeadLettersConfig`.

    - `max_bad_share`: stop if the share of records that do not fit the schema, from 0 to 1, is larger. The first
      records decide before anything is spent. None: no limit.
    - `keep_payload`: whether dead letters hold the raw bad records, which are personal data.
    """

    max_bad_share: float | None = Field(default=BAD_SHARE, ge=0, le=1)
    keep_payload: bool = False

    @model_validator(mode="after")
    def _has_place(self) -> Self:
        if self.keep_payload and not any(getattr(self, place, None) for place in ("dead_letters", "dead_letter_topic")):
            raise ValueError("keep_payload needs dead_letters, or another place for the payloads")
        return self


class ReadConfig(BadRecordsConfig):
    """A source that one run reads to its end.

    - `follow`: whether to wait for more records at the end.
    - `max_bad_share`, `dead_letters`, `keep_payload`: see `BadRecordsConfig`.
    """

    type: str
    follow: bool = False

    @property
    def name(self) -> str:
        """What messages call the source."""
        raise NotImplementedError

    def build(self, encoder: "Encoder") -> "Source":
        """Open the source, whose columns the `encoder` reads."""
        raise NotImplementedError


def type_of(value: Any, usual: object = None) -> object:
    """The `type` that settings name, with the `content` behind it if they name one; or the `usual` one."""
    keys, mapped = ("type", "content"), isinstance(value, Mapping)
    kind, content = (value.get(key) if mapped else getattr(value, key, None) for key in keys)
    return usual if kind is None else kind if content is None else f"{kind} {content}"


def by_type(kinds: Mapping[str, Any], usual: str) -> object:
    """The annotation of a setting that is one of the `kinds`, by its `type`; without a type the `usual` one.

    A text is of the type "file".
    """

    def tag(value: object) -> str | None:
        found = kinds.get("file" if isinstance(value, str) else str(type_of(value, usual)))
        return None if found is None else str(found.__name__)

    tagged: list[object] = [Annotated[kind, Tag(kind.__name__)] for kind in dict.fromkeys(kinds.values())]
    said = ", ".join(repr(name) for name in kinds if " " not in name)
    chosen: object = reduce(or_, tagged)
    return Annotated[chosen, Discriminator(tag, custom_error_type="type", custom_error_message=said)]


class SourceOptions(SourceSettings):
    """Options of a source's client, among which there may be secrets.

    `options`: a value may be `{env: NAME}` or `{file: PATH}`; a password must be.
    """

    options: dict[str, object] = Field(default_factory=dict)

    @field_validator("options")
    @classmethod
    def _no_secrets(cls, options: dict[str, object]) -> dict[str, object]:
        for name, value in options.items():
            problem = None
            if isinstance(value, Mapping):
                if len(value) != 1 or not {"env", "file"}.issuperset(value):
                    problem = "expected a value, {env: NAME} or {file: PATH}"
            elif any(word in name.lower() for word in _SECRETS):
                problem = "a secret must be {env: NAME} or {file: PATH}; do not write it here"
            if problem is not None:
                detail = InitErrorDetails(type=PydanticCustomError("option", problem), loc=(name,), input=None)
                raise ValidationError.from_exception_data("options", [detail])  # it locates the option
        return options

    def client_options(self) -> dict[str, object]:
        """`options` with the values of their secrets. Raises `ConfigError` if a secret cannot be read."""
        return {name: secret(f"source.options.{name}", value) for name, value in self.options.items()}


def secret(name: str, value: object) -> Any:
    """The `value` of a setting, read from the environment or a file if it says so.

    Raises `ConfigError`, with the `name` of the setting, if it cannot be read.
    """
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
