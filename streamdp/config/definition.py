"""The part of a job configuration that defines the model; the store keeps it as text."""

from __future__ import annotations

from hashlib import blake2b
from inspect import signature
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, ValidationError, model_validator
from river.base import Classifier

from streamdp.config.model import BudgetText, ModelConfig, build_loss
from streamdp.config.problems import MisfitError, first_problem
from streamdp.config.schema import SchemaConfig
from streamdp.config.settings import Settings
from streamdp.errors import BudgetError, ConfigError
from streamdp.estimators.base import StreamEstimator
from streamdp.privacy.guarantees import Budget, parse_budget, with_amount

if TYPE_CHECKING:
    from streamdp.data.schema import Schema
    from streamdp.ledger.ledger import Ledger


class Definition(Settings):
    """The schema, the model and the cap: everything that must not change between the runs of a job.

    A definition holds no paths and no secrets.

    Parameters
    ----------
    schema
        The declared public schema.
    model
        The estimator and its parameters.
    cap
        The total that a subject may spend. None: no cap.
    """

    schema_: SchemaConfig = Field(alias="schema")
    model: ModelConfig
    cap: BudgetText | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        name, kind = self.model.estimator, self.model.kind
        classifier = issubclass(kind, Classifier)
        if classifier != (self.schema_.target.classes is not None):
            need = "a schema.target with classes" if classifier else "a schema.target without classes"
            raise MisfitError("model", f"{name} needs {need}")
        if self.cap is not None and self.schema_.subject is None:
            raise MisfitError("cap", "needs schema.subject, the column that identifies the person of a record")
        if kind.needs_subject and self.schema_.subject is None:
            raise MisfitError("model", f"{name} needs schema.subject: it protects all records of a subject together")
        try:
            self.build_estimator()
        except (ConfigError, BudgetError) as error:
            raise MisfitError("model", str(error)) from None
        self._check_cap()
        return self

    def _check_cap(self) -> None:
        """Refuse a cap that cannot count the budget of the job now, not at the first record."""
        if self.cap is not None:
            from streamdp.ledger.ledger import Ledger

            try:
                with Ledger(self.cap) as ledger:
                    admitted = ledger.admit("anyone", parse_budget(self.model.budget))
            except BudgetError as error:
                raise MisfitError("cap", str(error)) from None
            if not admitted:
                raise MisfitError("cap", f"{self.cap} is below model.budget {self.model.budget}: no record would fit")

    @property
    def cap_budget(self) -> Budget | None:
        """The cap as a budget. None if there is no cap."""
        return None if self.cap is None else parse_budget(self.cap)

    def text(self) -> str:
        """JSON text of the definition, for the store; `read_definition` reads it."""
        return self._text(self.model)

    def _text(self, model: ModelConfig) -> str:
        """The text with another model, and without the fields that a subclass adds."""
        plain = Definition.model_construct(schema_=self.schema_, model=model, cap=self.cap)
        return plain.model_dump_json(by_alias=True, exclude_none=True)

    def fingerprint(self) -> str:
        """A digest of everything that must not change between the runs of a job.

        If records may have their own budgets, the amount of the default may change, but not its kind and its delta.
        All seeds have the same digest, and no seed has another one: a state that was learned without privacy never
        becomes private.
        """
        budget = parse_budget(self.model.budget)
        kind = str(with_amount(budget, 1.0) if self.model.kind.per_record_budgets else budget)
        seed = None if self.model.seed is None else 0
        text = self._text(self.model.model_copy(update={"budget": kind, "seed": seed}))
        return blake2b(text.encode(), digest_size=16, person=b"streamdp-job").hexdigest()

    def build_schema(self) -> Schema:
        """The encoder of the job's records."""
        return self.schema_.build()

    def build_estimator(self, ledger: Ledger | None = None) -> StreamEstimator:
        """Build the estimator, which has learned nothing.

        Parameters
        ----------
        ledger
            The ledger that counts the spends of subjects. None: spends are not counted.

        Raises `ConfigError` and `BudgetError` for parameters out of range.
        """
        model = self.model
        build: Any = model.kind
        given: dict[str, Any] = {
            key: value
            for key, value in model
            if value is not None and key not in ("estimator", "loss", "budget", "domain")
        }
        known = signature(build).parameters.keys()
        if foreign := sorted(given.keys() - known):
            raise ConfigError(f"{model.estimator} has no {foreign[0]}")
        if model.loss is not None:
            given["loss"] = build_loss(model.loss)
        if model.domain is not None:
            given["domain"] = model.domain.build()
        if self.schema_.target.classes is not None:
            given["classes"] = list(self.schema_.target.classes)
        features: Any = list(self.build_schema().feature_names)
        if "scaling" in known:
            features, target = self.schema_.declared(), self.schema_.target
            if target.bounds is not None:
                given["target"] = tuple(bound / (target.scale or 1.0) for bound in target.bounds)
        estimator: StreamEstimator = build(budget=model.budget, features=features, ledger=ledger, **given)
        return estimator


def read_definition(text: str) -> Definition:
    """Read a definition.

    Parameters
    ----------
    text
        What `Definition.text` returned.

    Raises `ConfigError` for any other text.
    """
    if not text:
        raise ConfigError("this store holds no model: it belongs to a shuffler, or was made without a configuration")
    try:
        return Definition.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"the store's configuration: {first_problem(error)[1]}") from None
