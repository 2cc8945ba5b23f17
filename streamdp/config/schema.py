"""The schema part of a job configuration: the declared, public facts about the records."""

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_serializer, field_validator, model_validator

from streamdp.config.problems import BRANCHES
from streamdp.config.settings import Settings
from streamdp.errors import is_number

if TYPE_CHECKING:
    from streamdp.data.schema import Schema


def _label(item: object) -> object:
    """The text that a CSV file holds for a label that YAML reads as a boolean or an integer."""
    return str(item) if isinstance(item, bool | int) else item


def _category(item: object) -> object:
    """The text of a truth value; other categories that YAML does not read as text need quotes."""
    return str(item).lower() if isinstance(item, bool) else item


Label = Annotated[str, BeforeValidator(_label, json_schema_input_type=str | bool | int)]
Category = Annotated[str, BeforeValidator(_category, json_schema_input_type=str | bool)]


Words = Annotated[str | None, Field(min_length=1, max_length=1000, exclude=True)]
"""Text for people. It is no part of what must not change between the runs of a job."""


class DescribedConfig(Settings):
    """What people read about a column, on the pages of the service. It is public and changes no record.

    - `label`: the question or the name that people read, such as "Your age?". None: the name of the column.
    - `unit`: the unit of a number, such as years.
    - `help`: a sentence below the label.
    """

    label: Words = None
    unit: Words = None
    help: Words = None

    def words(self) -> dict[str, str]:
        """The texts that are given, by key."""
        given = {"label": self.label, "unit": self.unit, "help": self.help}
        return {key: text for key, text in given.items() if text is not None}


class TargetConfig(DescribedConfig):
    """The column to predict: one of `classes`, or a number. It may have `label`, `unit` and `help`.

    - `classes`: the labels, at least two. None: the target is a number.
    - `bounds`: the public bounds (low, high) of a number. Values outside are clipped to them.
    - `scale`: a public constant. A number is divided by it before learning. With `bounds`, an estimator that scales
      privately needs none.
    - `decimal`: as for a feature.
    - `transform`: `log`: the natural log of a number with bounds above 0 is learned. A prediction is then a median.
    """

    column: str
    classes: list[Label] | None = None
    bounds: tuple[float, float] | None = None
    scale: float | None = None
    decimal: int | None = Field(default=None, ge=0, le=76)
    transform: Literal["log"] | None = None

    @model_validator(mode="after")
    def _log_of_bounds(self) -> Self:
        if self.transform is not None and (self.bounds is None or not self.bounds[0] > 0):
            raise ValueError("transform: log needs bounds above 0")
        return self

    def declared(self) -> Any:
        """The target with bounds as estimators take it, divided by its scale."""
        bounds = tuple(bound / (self.scale or 1.0) for bound in self.bounds or ())
        return bounds if self.transform is None else {"bounds": bounds, "transform": self.transform}


class FeatureConfig(DescribedConfig):
    """A feature with more than bounds or categories.

    It has one of bounds, categories, bins, cyclic, hash, text and product. It may have `label`, `unit` and `help`.

    - `bounds`: the public bounds (low, high) of a number. Values outside are clipped to them. `private`: none are
      known, and a window finds a range for 5 % of its mu^2 (`trust: window` only).
    - `categories`: the public categories of a text.
    - `transform`: what is learned of a number with bounds: `log`, `asinh`, or a mapping: `asinh: SCALE` is asinh(value
      / SCALE), `power: EXPONENT` is value^EXPONENT.
    - `knots`: between its bounds, the effect of a number is linear between these knots, and bends at them.
    - `bins`: the edges of the bins of a number, increasing. Each bin but the lowest has a weight of its own.
    - `cyclic`: for a number on a circle: its period, or the part of a date that it is. Sine and cosine are learned.
    - `hash`: into how many buckets a text is hashed, by FNV-1a of 32 bits.
    - `text`: how many bytes are kept of a text of an open domain, 1 to 64: for heavy hitters in a job without a target.
    - `product`: the names of other features; the products of their columns are learned. Nothing else is declared of it.
    - `per`: for categories: each is a group with effects of its own, beside those that all share, of all other features
      (true), or of those that are named. Gaps and other values with a category have the shared effects.
    - `typical`: the centre and the spread of most values, from public knowledge: where scaling begins. None: not known.
    - `column`: the raw column, or a path with dots in nested JSON. None: the name of the feature.
    - `part`: the part of a date or time that is the value, as a number or as one of the categories.
    - `format`: how dates are written, in the notation of `strftime`; or `days` (as Avro's dates), `seconds`,
      `milliseconds` or `microseconds`, a number since 1970 (UTC). None: ISO 8601.
    - `decimal`: for decimals as Kafka Connect and Debezium write them in JSON, in base64: the number of decimal places,
      which is the scale of the database's column. Other values are dead letters.
    - `missing`: what a missing value means. `drop`, the default: the record is left out, which is public. `zero`: the
      number 0, or the first category. `typical`: the typical centre. `category`: a category of its own.
    - `other`: whether texts that are not declared are one category of their own. Otherwise their records are left out.
    """

    bounds: tuple[float, float] | Literal["private"] | None = None
    categories: list[Category] | None = None
    transform: Literal["log", "asinh"] | dict[Literal["asinh", "power"], float] | None = None
    knots: list[float] | None = Field(default=None, min_length=1)
    bins: list[float] | None = Field(default=None, min_length=1)
    cyclic: Literal["month", "day", "weekday", "hour", "minute"] | float | None = None
    hash: int | None = None
    text: int | None = None
    product: list[str] | None = None
    per: bool | list[str] | None = None
    typical: tuple[float, float] | None = None
    column: str | None = Field(default=None, min_length=1)
    part: Literal["year", "month", "day", "weekday", "hour", "minute"] | None = None
    format: str | None = Field(default=None, min_length=1)
    decimal: int | None = Field(default=None, ge=0, le=76)
    missing: Literal["drop", "zero", "typical", "category"] | None = None
    other: bool | None = None

    def plain(self) -> object:
        """What is declared of the values: bounds or a list of categories if that is all, otherwise a mapping."""
        given = self.model_dump(exclude_none=True)
        alone = given.keys() in ({"bounds"}, {"categories"}) and not isinstance(self.bounds, str)
        return next(iter(given.values())) if alone else given


def _form(declared: object) -> str | None:
    """The form of a declaration; None for another value."""
    if isinstance(declared, dict | FeatureConfig):
        return BRANCHES[2]
    if not isinstance(declared, list | tuple) or not declared:
        return None
    if all(isinstance(item, str | bool) for item in declared):
        return BRANCHES[1]
    numbers = all(is_number(item) and math.isfinite(item) for item in declared)
    return BRANCHES[0] if numbers and len(declared) == 2 else None


Declared = Annotated[
    Annotated[tuple[float, float], Tag(BRANCHES[0])]
    | Annotated[list[Category], Tag(BRANCHES[1])]
    | Annotated[FeatureConfig, Tag(BRANCHES[2])],
    Discriminator(
        _form,
        custom_error_type="form",
        custom_error_message="expected two numbers [low, high], both finite, or a list of categories as text (put"
        " quotes around a category that looks like a number or a boolean)",
    ),
]


class SubjectConfig(DescribedConfig):
    """The column that identifies the person of a record, and which of its values are one person.

    It may have `label`, `unit` and `help`.

    - `type`: `text`: each text in Unicode's form NFC is a person. `integer`: a whole number is a person; 7, +7 and 007
      are one, and other values are dead letters.
    """

    column: str
    type: Literal["text", "integer"] = "text"


class TimeConfig(Settings):
    """The column with the time of a record, for a cap that renews.

    - `unit`: `iso`: text in ISO 8601, as 2026-11-22T16:05:00+01:00; without an offset it is UTC. `seconds`,
      `milliseconds`, `microseconds`: a number since 1970 (UTC). Other values are dead letters.
    """

    column: str
    unit: Literal["iso", "seconds", "milliseconds", "microseconds"]


class SchemaConfig(Settings):
    """The declared public schema.

    - `features`: for each feature, its bounds [low, high], the list of its categories, or a mapping as `FeatureConfig`
      describes. A category that is absent from the stream for a long time loses its weight, because noise is added to
      each weight at each record.
    - `target`: the column to predict. Statistics have none.
    - `subject`: the column that identifies the person of a record, of type text; or a mapping with `column` and `type`.
      None: records have no subject.
    - `budget`: the column with the amount that a record may spend. None: every record spends `model.budget`.
    - `time`: the column with the time of a record, by which a cap that renews counts it. None: the moment at which it
      is learned.
    - `missing_values`: texts that mean a missing value in features and target, beside the empty text, such as NA.
    """

    features: dict[str, Declared] = Field(min_length=1)
    target: TargetConfig = TargetConfig(column="")
    subject: SubjectConfig | None = None
    budget: str | None = None
    time: TimeConfig | None = None
    missing_values: list[str] | None = None

    @field_validator("subject", mode="before", json_schema_input_type=str | SubjectConfig | None)
    @classmethod
    def _column_or_type(cls, value: object) -> object:
        if not isinstance(value, str | dict | SubjectConfig | None):
            raise ValueError("expected the name of a column, or a mapping with column and type")
        return {"column": value} if isinstance(value, str) else value

    @field_serializer("subject")
    def _plain_subject(self, value: Any) -> object:
        """Text is the type that a column has anyway."""
        return value.column if value is not None and value.type == "text" else value

    @field_serializer("features")
    def _plain_features(self, value: object) -> dict[str, object]:
        return self.declared()

    def declared(self) -> dict[str, object]:
        """The features as `data.schema.Schema` takes them."""
        return {
            name: declared.plain() if isinstance(declared, FeatureConfig) else declared
            for name, declared in self.features.items()
        }

    def words(self) -> dict[str, Any]:
        """What people read about the `features`, by raw column, about the `target` and the `subject`."""
        described = [(name, given) for name, given in self.features.items() if isinstance(given, FeatureConfig)]
        features = {given.column or name: given.words() for name, given in described if given.words()}
        subject = {} if self.subject is None else self.subject.words()
        return {"features": features, "target": self.target.words(), "subject": subject}

    def baselines(self) -> dict[str, str]:
        """What the weight of a column is compared with, such as the first category, by the name of the column."""
        declared = self.build().declarations.values()
        return {piece.name: d.baseline for d in declared if d.baseline is not None for piece in d.pieces}

    def build(self, limits: tuple[float, float] | None = None, coded: bool = False) -> "Schema":
        """The schema. Raises `SchemaError` for declarations that contradict each other.

        `limits`: how far a record's time may be before and after the present, in seconds. None: any.
        `coded`: as for `Schema`.
        """
        from streamdp.data.schema import Schema
        from streamdp.data.times import TimeColumn

        subject = self.subject
        return Schema(
            self.declared(),
            self.target.column,
            target_bounds=self.target.bounds,
            target_scale=1.0 if self.target.scale is None else self.target.scale,
            target_decimal=self.target.decimal,
            classes=self.target.classes,
            subject=subject if subject is None else subject.column,
            subject_type="text" if subject is None else subject.type,
            budget=self.budget,
            time=None if self.time is None else TimeColumn(self.time.column, self.time.unit, limits),
            missing_values=self.missing_values or (),
            coded=coded,
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.build()
        return self
