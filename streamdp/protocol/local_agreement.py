"""What people agree to before they send local reports: schema, loss, mechanism and budget. See docs/reports.md.

What they agree to for reports about statistics is in `statistics_agreement`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import rfc8785
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from streamdp.config.definition import Definition
from streamdp.errors import ConfigError, SchemaError
from streamdp.estimators import accepted
from streamdp.optim.losses import Loss
from streamdp.privacy.mechanisms import NoNoise, mechanism_for

if TYPE_CHECKING:
    from streamdp.data.schema import Schema

PROTOCOL = 1
"""The version of the wire form and of its test vectors."""

_MOST_COLUMNS = 10_000
Name = Annotated[str, Field(min_length=1, max_length=1000)]
"""The name of a job, a column or a loss."""


_NUMBER = r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?"
_NOTHING = r"^(eps|mu)=0+(\.0+)?(e|,|$)|delta=0*[1-9][0-9]*(\.[0-9]+)?(e\+?[0-9]+)?$"  # as far as a pattern can tell
Spent = Annotated[
    str,
    Field(
        max_length=100,
        pattern=rf"^(eps={_NUMBER}|eps={_NUMBER},delta={_NUMBER}|mu={_NUMBER})$",
        json_schema_extra={"not": {"pattern": _NOTHING}},
    ),
]
"""A budget as messages write it: "eps=1", "eps=1,delta=1e-6" or "mu=1". Neither 0 nor a delta of 1 and more is one."""


class Wire(BaseModel):
    """A part of a message: strict, without unknown keys, and with finite numbers only."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, allow_inf_nan=False)


def whole(value: object) -> object:
    """Return 7 for 7.0, which JSON of another language may have for a whole number, and any other `value` unchanged."""
    return int(value) if type(value) is float and value.is_integer() else value


class Number(Wire):
    """A feature that is a number."""

    name: Name
    bounds: list[float] = Field(min_length=2, max_length=2)  # public, [low, high]; values outside are clipped to them


class Category(Wire):
    """A feature that is one of several texts."""

    name: Name
    categories: list[str] = Field(min_length=2, max_length=_MOST_COLUMNS)  # the first one has no column


class Grouped(Category):
    """A feature that is one of several groups, which have effects of their own: each has a column, and products."""

    per: list[Name] = Field(min_length=1, max_length=_MOST_COLUMNS)  # other features, no products: their effects


class Transformed(Wire):
    """A feature with a declared transform: its declaration, where a key that it has not is null."""

    name: Name
    column: Name | None  # the key in a record; None: it is a product of other features
    bounds: list[float] | None = Field(min_length=2, max_length=2)
    transform: dict[Literal["log", "asinh", "power"], float | None] | None = Field(min_length=1, max_length=1)
    knots: list[float] | None = Field(max_length=_MOST_COLUMNS)
    bins: list[float] | None = Field(max_length=_MOST_COLUMNS)
    cyclic: str | float | None  # a period, or a part of a date that is written in ISO 8601
    hash: Annotated[int, Field(ge=2, le=_MOST_COLUMNS), BeforeValidator(whole)] | None
    product: list[Name] | None = Field(max_length=_MOST_COLUMNS)


class Target(Wire):
    """What is predicted."""

    name: Name
    # the labels of a classification; None: the target is a number
    classes: list[str] | None = Field(min_length=2, max_length=_MOST_COLUMNS)
    bounds: list[float] | None = Field(min_length=2, max_length=2)  # public, [low, high] of a number; None: no bounds
    # a number is clipped to its bounds and then divided by this
    scale: float = Field(ge=accepted.LEAST, le=accepted.MOST)


def declared_of(features: Sequence[Wire]) -> dict[str, dict[str, object]]:
    """Return the features of a document as `Schema` takes them.

    Raises `SchemaError` for one that comes twice, and `ConfigError` for unusable bounds.
    """
    found = {}
    for feature in features:
        given = feature.model_dump()
        if given.get("bounds") is not None:
            accepted.check_half("refused: a feature", *middle_and_half(given["bounds"]))
        found[given.pop("name")] = given
    if len(found) < len(features):
        raise SchemaError("expected no feature twice")
    return found


def checked(schema: Schema) -> Schema:
    """Return a schema of a document, or raise `ConfigError` for bounds that transforms make unusable."""
    for piece in schema.pieces:
        accepted.check_half("refused: a feature", piece.origin, piece.unit)
    return schema


Subject = Literal["text", "integer"] | None
"""What a report must name its person by; None: it need not."""


class WireSchema(Wire):
    """The declared public schema."""

    features: list[Number | Category | Grouped | Transformed] = Field(
        min_length=1, max_length=_MOST_COLUMNS
    )  # in the order of their columns
    target: Target
    intercept: bool  # whether a constant 1 follows the columns
    subject: Subject

    def build(self) -> Schema:
        """The encoder of records. Raises `SchemaError` for contradictions, `ConfigError` for unusable bounds."""
        from streamdp.data.schema import Schema

        features = declared_of(self.features)
        self._check_columns()
        if self.target.bounds is not None:
            accepted.check_half("refused: the target", *middle_and_half(self.target.bounds))
            accepted.check_half("refused: the target", *middle_and_half(self.target.bounds, self.target.scale))
        target = self.target
        bounds = None if target.bounds is None else (target.bounds[0], target.bounds[1])
        scale, classes = target.scale, target.classes
        return checked(Schema(features, target.name, target_bounds=bounds, target_scale=scale, classes=classes))

    def _check_columns(self) -> None:
        """Refuse more columns than `_MOST_COLUMNS`, before they are made: products have many with few words."""
        from streamdp.data.declaration import declaration

        total = sum(feature.hash or 0 for feature in self.features if isinstance(feature, Transformed))
        if total <= _MOST_COLUMNS:
            single = [f for f in self.features if not isinstance(f, Transformed) or f.product is None]
            counts = {f.name: len(declaration(f.name, f.model_dump(exclude={"name"})).pieces) for f in single}
            several = [f.product for f in self.features if isinstance(f, Transformed) and f.product is not None]
            several += [[f.name, name] for f in self.features if isinstance(f, Grouped) for name in f.per]
            total = sum(counts.values()) + sum(math.prod(counts.get(name, 0) for name in names) for names in several)
        if total > _MOST_COLUMNS:
            raise ConfigError(f"refused: expected at most {_MOST_COLUMNS} columns")


def middle_and_half(bounds: list[float] | tuple[float, float], scale: float = 1.0) -> tuple[float, float]:
    """Return the middle of `bounds` and half their distance, both divided by `scale`."""
    low, high = bounds[0] / scale, bounds[1] / scale
    return (low + high) / 2, (high - low) / 2


def on_the_wire(schema: Schema, name: str, declared: object) -> dict[str, Any]:
    """A declared feature as a device gets it. Raises `ConfigError` for what devices do not know."""
    found, given = schema.declarations.get(name), declared if isinstance(declared, dict) else {}
    if (
        found is not None
        and found.plain
        and not given.keys() - {"bounds", "categories", "per", "typical", "column", "missing"}
    ):
        values = list(found.values)
        own = {"per": list(schema.effects(name))} if found.per else {}
        return {"name": name, "bounds" if found.is_number else "categories": values} | own
    if found is not None and found.length and found.plain:
        return {"name": name, "text": found.length}
    known = given.keys() <= {*Transformed.model_fields, "part", "typical"} - {"name"} and "categories" not in given
    if not known or (found is not None and found.part is not None and found.part != given.get("cyclic")):
        raise ConfigError(
            f"this job takes no reports over HTTP: {name!r} needs more than bounds, categories and transforms"
        )
    transform = given.get("transform")
    return dict.fromkeys(Transformed.model_fields) | {
        "name": name,
        "column": None if found is None else found.column,
        **{key: given[key] for key in given.keys() & Transformed.model_fields.keys() - {"column"}},
        "bounds": list(given["bounds"]) if "bounds" in given else None,
        "transform": {transform: None} if isinstance(transform, str) else transform,
    }


class WireLoss(Wire):
    """The loss."""

    name: Name  # a name in `LOSSES`
    parameters: dict[str, float | str | None] = Field(max_length=10)  # all of them
    bound: float = Field(gt=0)  # the noise is calibrated to it and to `sensitivity` (see `losses.base`)
    sensitivity: float = Field(gt=0)

    def build(self) -> Loss:
        """The loss. Raises `ConfigError` for a loss that does not have these parameters and constants."""
        from streamdp.config.model import build_loss

        for name, value in self.parameters.items():
            least = accepted.LEAST_SHAPE if name == "c" else accepted.LEAST
            if isinstance(value, float) and not least <= value <= accepted.MOST:
                raise ConfigError(f"refused: expected parameters of the loss from {least:g} to {accepted.MOST:g}")
        loss = build_loss({"name": self.name, **self.parameters})
        for announced, derived in ((self.bound, loss.bound), (self.sensitivity, loss.sensitivity)):
            if not abs(announced - derived) <= 1e-12 * derived:
                raise ConfigError(f"refused: the loss {self.name} has another bound than announced")
        if asdict(loss) != self.parameters or not accepted.LEAST <= loss.bound <= accepted.MOST:
            raise ConfigError("refused: expected all parameters of the loss, and a bound from 1e-60 to 1e60")
        return loss


class Agreed(Wire):
    """What people agree to once. It never changes while a job lives; a device refuses a document with another one."""

    protocol: Annotated[int, Field(ge=PROTOCOL, le=PROTOCOL), BeforeValidator(whole)]
    job: Name
    budget: Spent  # the most that a report may spend

    @property
    def agreed(self) -> Self:
        """The part that never changes: all of it, but for documents."""
        return self

    @property
    def subject(self) -> Subject:
        """What a report must name its person by."""
        schema = getattr(self, "schema_")  # noqa: B009 - each kind has another one
        return schema.subject

    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the agreement as canonical JSON (RFC 8785). It fits a printed notice."""
        return sha256(rfc8785.dumps(self.agreed.model_dump(by_alias=True))).hexdigest()


def check_plain(definition: Definition) -> Schema:
    """Return the schema of a job, or raise `ConfigError` if devices could not read a record as it does."""
    built, target = definition.build_schema(), definition.schema_.target
    if built.blanks or target.decimal is not None or target.transform is not None:
        without = "missing_values, and no decimal and transform of a target"
        raise ConfigError(f"this job takes no reports over HTTP: devices have no {without}")
    return built


class LocalAgreement(Agreed):
    """The agreement of a job with a model."""

    schema_: WireSchema = Field(alias="schema")
    loss: WireLoss
    mechanism: Literal["laplace", "gaussian", "privunit"]

    @classmethod
    def of(cls, job: str, definition: Definition) -> LocalAgreement:
        """The agreement of a `job`. Raises `ConfigError` if the model has no local half on the wire, or no noise."""
        learner: Any = definition.build_estimator()
        if not learner.takes_reports:
            need = "expected LDPSGD* or LDPASGD*, and no statistics beside it"
            raise ConfigError(f"{definition.model.estimator} takes no reports over HTTP: {need}")
        schema, target = definition.schema_, definition.schema_.target
        built = check_plain(definition)
        local = learner.randomizer
        mechanism = mechanism_for(local.mechanism, local.budget)
        if mechanism.code == NoNoise.code:
            raise ConfigError("reports over HTTP need a mechanism with noise")
        features = [on_the_wire(built, name, declared) for name, declared in schema.declared().items()]
        subject = None if schema.subject is None else built.subject_type
        loss = {"name": local.loss.name, "parameters": asdict(local.loss)}
        constants = {"bound": local.loss.bound, "sensitivity": local.loss.sensitivity}
        return cls.model_validate(
            {
                "protocol": PROTOCOL,
                "job": job,
                "schema": {
                    "features": features,
                    "target": {
                        "name": target.column,
                        "classes": target.classes,
                        "bounds": None if target.bounds is None else list(target.bounds),
                        "scale": target.scale or 1.0,
                    },
                    "intercept": local.intercept,
                    "subject": subject,
                },
                "loss": loss | constants,
                "mechanism": mechanism.name,
                "budget": str(local.budget),
            }
        )
