"""The part of a job configuration that defines the model; the store keeps it as text."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from hashlib import blake2b
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from river.base import Classifier

from streamdp import estimators
from streamdp.config.model import ModelConfig, ValidationConfig, build_loss
from streamdp.config.problems import MisfitError, problems
from streamdp.config.promise import Promise, models, weaker
from streamdp.config.schema import SchemaConfig
from streamdp.config.settings import Settings
from streamdp.config.shuffle import ShuffledConfig
from streamdp.config.trust import STATISTICS
from streamdp.data.times import ZONE
from streamdp.errors import BudgetError, ConfigError
from streamdp.estimators.door import Trust, trust_of
from streamdp.estimators.estimator import Estimator
from streamdp.estimators.traps import say_nothing, unsaid
from streamdp.learners.series import furthest
from streamdp.learners.side_statistics import divided
from streamdp.ledger.periods import Cap, RenewingCap, loosest, parse_cap, whole_seconds
from streamdp.privacy.guarantees import Budget, PureDP, parse_budget
from streamdp.validation.quality import Quality

if TYPE_CHECKING:
    from streamdp.data.schema import Schema
    from streamdp.ledger.ledger import Ledger
    from streamdp.store.identity import Terms


def _cap_text(value: Any) -> str:
    if value == "none":
        raise ValueError("a job without a cap has no such setting: leave it out")
    return str(parse_cap(value))


CapText = Annotated[str, BeforeValidator(_cap_text)]
_OWN_WORDS = 2**64
"""What is added to a seed: statistics beside a model have random words of their own."""
SEEDS_ALLOWED = "STREAMDP_TEST_SEEDS"
"""The environment variable without which a job has no seed; the test suite sets it to 1."""


class Definition(Settings):
    """The schema, the model and the cap: everything that must not change between the runs of a job.

    A definition holds no paths and no secrets.

    - `schema`: the declared public schema.
    - `model`: the estimator and its parameters. With `statistics` and no target, only `trust`, `budget`, `batch_size`
      and `every`.
    - `statistics`: what to estimate, by name, such as `{quantile: 0.5, of: charges, by: region}`; see `Statistics`. If
      the schema has a target, a model is learned from the same records in the same budget.
    - `cap`: what a subject may spend: a total, such as `eps=8`, or a budget that renews, such as `eps=8 per 30 days,
      late 7 days, ahead 1 hour, total eps=40`, of which only the period is needed. None: no cap.
    - `validation`: how records answer about the model's error. None: they do not.
    - `shuffled`: the shuffler through which all reports of devices come. None: they come from the devices.
    """

    schema_: SchemaConfig = Field(alias="schema")
    model: ModelConfig
    statistics: dict[str, dict[str, object]] | None = Field(default=None, min_length=1)
    cap: CapText | None = None
    validation: ValidationConfig | None = None
    shuffled: ShuffledConfig | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        name, kind = self.model.estimator, self.model.kind
        self._fit_together()
        classifier = issubclass(kind, Classifier)
        if classifier != (self.schema_.target.classes is not None):
            need = "a schema.target with classes" if classifier else "a schema.target without classes"
            raise MisfitError("model", f"{name} needs {need}")
        if self.cap is not None and self.schema_.subject is None:
            raise MisfitError("cap", "needs schema.subject, the column that identifies the person of a record")
        if self.schema_.time is not None and not (isinstance(self.cap_budget, RenewingCap) or self.model.every):
            need = "time is for a cap that renews, such as eps=8 per 30 days, and for statistics with model.every"
            raise MisfitError("schema", f"{need}; leave it out")
        if kind.learns.needs_subject and self.schema_.subject is None:
            raise MisfitError("model", f"{name} needs schema.subject: it protects all records of a subject together")
        try:
            estimator = self.build_estimator()
        except (ConfigError, BudgetError) as error:
            declared = any(str(error).startswith(f"{name!r}: ") for name in self.statistics or ())
            raise MisfitError("statistics" if declared else "model", str(error)) from None
        own = self.validation is not None and self.validation.budget is not None and kind.learns.per_record_budgets
        if own and self.schema_.budget is not None:
            need = "records with budgets of their own (schema.budget) allow no more than these: set validation.share"
            raise MisfitError("validation", need)
        self._check_seed()
        self._check_shuffled(estimator)
        self._check_cap(estimator.record_budget)
        return self

    def _fit_together(self) -> None:
        """Refuse what is neither statistics, nor a model, nor both."""
        if not self.schema_.target.column and self.statistics is None:
            raise MisfitError("schema", "expected a target")
        if (self.model.estimator == STATISTICS) == self.has_model:
            raise MisfitError("statistics", f"expected {STATISTICS} without a target, and another estimator with one")
        if not self.has_model:
            given = {"validation": self.validation is not None, "model": bool(self.model.loss or self.model.domain)}
            for key, is_given in given.items():
                if is_given:
                    need = "validation, loss and domain are for models, and a job without a target has none"
                    raise MisfitError(key, f"{need}: leave them out")
        if self.model.share is not None and not (self.has_model and self.statistics):
            raise MisfitError("model", "share is for a model with statistics beside it: leave it out")
        if self.has_model and any(declared.length for declared in self.schema_.build().declarations.values()):
            raise MisfitError("schema", "a text of an open domain is for heavy hitters; a model may hash it")
        if self.has_model and self.statistics and self.schema_.budget is not None:
            need = "budgets of single records are not divided between a model and statistics: leave schema.budget out"
            raise MisfitError("statistics", need)
        if self.has_model and self.statistics and self.validation is not None:
            raise MisfitError("validation", "with statistics beside the model no records answer: leave one of them out")

    def _check_shuffled(self, estimator: Estimator) -> None:
        """Refuse what would tell one shuffled report from another, and what has no promise of a pure epsilon."""
        if self.shuffled is None:
            return
        if not estimator.takes_reports:
            need = "needs a model or statistics of trust: nobody, and not both, which devices report to"
            raise MisfitError("shuffled", need)
        if not isinstance(estimator.record_budget, PureDP):
            raise MisfitError("shuffled", "needs a budget of a pure epsilon, such as eps=2")
        if self.schema_.subject is not None or self.schema_.budget is not None or self.validation is not None:
            need = "reports that name a person, or spend otherwise than others, do not hide among them"
            raise MisfitError("shuffled", f"{need}: leave schema.subject, schema.budget and validation out")

    def _check_seed(self) -> None:
        """Refuse a seed outside of tests: its noise can be computed, so the model would protect no record."""
        if self.model.seed is not None and os.environ.get(SEEDS_ALLOWED) != "1":
            need = f"seed is for tests, the model is not private with it: leave it out (tests set {SEEDS_ALLOWED}=1)"
            raise MisfitError("model", need)

    def _check_cap(self, spent: Budget) -> None:
        """Refuse a cap that cannot count what a record spends now, not at the first record."""
        if self.cap is not None:
            from streamdp.ledger.caps import fits

            try:
                admitted = fits(parse_cap(self.cap), spent)
            except BudgetError as error:
                raise MisfitError("cap", str(error)) from None
            if not admitted:
                name = "model.budget" if self.validation is None else "model.budget with validation.budget,"
                raise MisfitError("cap", f"{self.cap} is below {name} {spent}: no record would fit")

    @property
    def has_model(self) -> bool:
        """Whether a model is learned, and not only statistics."""
        return bool(self.schema_.target.column)

    @property
    def cap_budget(self) -> Cap | None:
        """The cap as a value. None if there is no cap."""
        return None if self.cap is None else parse_cap(self.cap)

    def of_source(self) -> dict[str, Any]:
        """What a store keeps of what `SourceSettings` say; empty: there is no source."""
        return {}

    def text(self) -> str:
        """JSON text of the definition, for the store; `read_definition` reads it."""
        return self._text(self.model)

    def _text(self, model: ModelConfig) -> str:
        """The text with another model, and without the fields that a subclass adds."""
        if self.has_model:
            model = model.model_copy(update={"trust": None})  # the estimator says it
        plain = self.model_copy(update={"model": model})
        return plain.model_dump_json(include={*Definition.model_fields}, by_alias=True, exclude_none=True)

    def fingerprint(self) -> str:
        """A digest of everything that must not change while a model goes on.

        The cap is not in it. If the state of the model goes on with other budgets, the budget's kind is, and else the
        budget. The order of statistics is not in it. All seeds have the same digest, and no seed has another one: a
        state that was learned without privacy never becomes private.
        """
        model, kind = self.model, self.model.kind.learns
        parts_by_chance = self.statistics is not None and self.trust == "nobody"
        budget = model.budget
        if kind.any_budget and model.cohort is None and not parts_by_chance:
            budget = type(parse_budget(budget)).__name__
        seed = None if model.seed is None else 0
        statistics = None if self.statistics is None else dict(sorted(self.statistics.items()))
        plain = self.model_copy(update={"cap": None, "statistics": statistics})
        text = plain._text(model.model_copy(update={"budget": budget, "seed": seed}))  # noqa: SLF001 - the same class
        return blake2b(text.encode(), digest_size=16, person=b"streamdp-job").hexdigest()

    @property
    def trust(self) -> Trust:
        """Who may see the raw records."""
        return trust_of(self.model.estimator) if self.has_model else cast(Trust, self.model.trust)

    @property
    def people(self) -> tuple[str, str] | None:
        """What names people: a column and its type; None: nothing does."""
        subject = self.schema_.subject
        return None if subject is None else (subject.column, subject.type)

    @property
    def time(self) -> tuple[str, str] | None:
        """By what a cap that renews counts records: a column and its unit; None: by the moment, or there is none."""
        time = self.schema_.time
        return None if time is None or not isinstance(self.cap_budget, RenewingCap) else (time.column, time.unit)

    def promise(self) -> Promise:
        """What people are promised."""
        estimator = self.build_estimator()
        items: int = getattr(getattr(estimator.learner, "plan", None), "items_per_user", 1)
        brought = self.shuffled is None and bool(self.of_source().get("own_budgets"))
        own = (brought or self.schema_.budget is not None) and self.model.kind.learns.per_record_budgets
        return Promise(
            budget=str(estimator.record_budget),
            own=own,
            private=estimator.private,
            covers=1 if self.people is None else items,
            cap=self.cap,
            people=self.people,
            time=self.time,
            windows=None if (every := self.model.every) is None else (whole_seconds(every), self.model.zone or ZONE),
            trust=self.trust,
            shuffled=None if self.shuffled is None else str(self.shuffled.of(cast(PureDP, estimator.record_budget))),
        )

    def continued(
        self,
        stored: str,
        learned: int,
        accept: bool,
        new_model: bool = False,
        *,
        cap: Cap | None = None,
    ) -> Terms:
        """Return the terms on which a job goes on that may have another budget, cap or model than before.

        `stored` is the text in its store, after so many `learned` records. `accept`: a weaker promise than the last one
        is accepted; `new_model`: a new model may replace one with another schema or other parameters. `cap` is that of
        the store's ledger, which an operator may have changed.

        Raises `ConfigError` for a weaker promise that is not accepted.
        """
        from streamdp.store.identity import Terms

        now = StoredDefinition.model_validate_json(self.text()).model_copy(update=self.of_source())
        if not stored:
            return Terms(now.fingerprint(), now.text())
        before = read_definition(stored)
        replaced = now.fingerprint() != before.fingerprint()
        if replaced and learned and not new_model:
            return Terms(self.fingerprint(), self.text())  # the store refuses it
        old, new, made = before.promise(), now.promise(), before.promises
        records = learned + sum(promises[-1].learned for promises in models(made)[:-1])
        if records and not accept:
            ledger = None if cap is None or old.cap is None else str(cap)  # of other jobs, if this one has no cap
            both = [old, old if ledger is None else old.model_copy(update={"cap": ledger})]
            if said := list(dict.fromkeys(sentence for one in both for sentence in weaker(one, new))):
                raise ConfigError(
                    f"{records:,} records were learned, and people would get a weaker promise than before:"
                    f" {'; '.join(said)}; restore the configuration, or say --accept-budget, and the statement keeps"
                    " both"
                )
        if records and (replaced or old != new):
            made = (*made, old.model_copy(update={"learned": learned, "ended": replaced}))
        kept = now.model_copy(update={"promises": made})
        if replaced and learned:
            note = kept.said_of_former()
        elif replaced:
            note = "the former model had learned nothing"
        else:
            note = "the model goes on: schema and model are as before"
        note = note if new_model else ""
        return Terms(kept.fingerprint(), kept.text(), note)

    def quality(self, estimator: Estimator) -> Quality | None:
        """What private answers say about an `estimator`, in the target's unit; None without `validation`."""
        found: Quality | None = None if self.validation is None else estimator.quality
        return None if found is None else found.scaled(self.schema_.target.scale or 1.0)

    @property
    def coded(self) -> bool:
        """Whether records are encoded for statistics alone: see `Schema`."""
        return not self.has_model

    def build_schema(self) -> Schema:
        """The encoder of the job's records."""
        return self._encoder(self.schema_)

    def _encoder(self, schema: SchemaConfig) -> Schema:
        cap, every = self.cap_budget, self.model.every
        late, ahead = (cap.late, cap.ahead) if isinstance(cap, RenewingCap) else (math.inf, math.inf)
        if every is not None:
            ahead = min(ahead, furthest(whole_seconds(every)))
        return schema.build(None if schema.time is None else (late, ahead), self.coded)

    @unsaid()
    def build_estimator(self, ledger: Ledger | None = None) -> Estimator:
        """Build the estimator, which has learned nothing; the `ledger` (None: nothing) counts the spends of subjects.

        Raises `ConfigError` and `BudgetError` for parameters out of range.
        """
        model = self.model
        if not self.has_model:
            given = model.parameters(signature(estimators.Statistics).parameters.keys())
            declared, trust = self.schema_.declared(), cast(Any, model.trust)
            return estimators.Statistics(self.statistics or {}, declared, model.budget, trust, ledger, **given)
        if self.statistics is None:
            return self._build_model(ledger, model.budget)
        statistics, share, target = self._side_statistics(self.statistics)
        estimator = self._build_model(ledger, divided(statistics.record_budget, share, statistics.trust)[0])
        estimator.add_statistics(statistics, share, target)
        return estimator

    def _build_model(self, ledger: Ledger | None, budget: Budget | str) -> Estimator:
        model = self.model
        build = model.kind
        known = signature(build).parameters.keys()
        given = model.parameters(known)
        if model.loss is not None:
            given["loss"] = build_loss(model.loss)
        if model.domain is not None:
            given["domain"] = model.domain.build()
        if self.schema_.target.classes is not None:
            given["classes"] = list(self.schema_.target.classes)
        features: object = list(self.build_schema().feature_names)
        target = self.schema_.target
        if model.kind.learns.scales_columns:
            features = self.schema_.declared()
        if target.bounds is not None and "target" in known:
            given["target"] = target.declared()
        elif target.transform is not None:
            raise ConfigError(f"{model.estimator} learns no log of a target")
        if self.validation is not None:
            if "validation" not in known:
                raise ConfigError(f"{model.estimator} has no validation: its users report under LDP")
            outside = None if "target" in known else target.bounds
            given["validation"] = self.validation.given(target.scale or 1.0, outside)
        estimator: Estimator = build(budget=budget, features=features, ledger=ledger, **given)
        say_nothing(estimator, "hints")  # the command says it, as of its budget, and devices and Spark have reasons
        return estimator

    def _side_statistics(
        self, declared: Mapping[str, Mapping[str, object]]
    ) -> tuple[estimators.Statistics, float, Any]:
        """What `Estimator.add_statistics` takes; the target may be one of the columns of the statistics."""
        features, target = self.schema_.declared(), self.schema_.target
        columns = None
        if target.column not in features and target.transform is None and (target.classes or target.bounds):
            features[target.column] = target.classes or target.bounds
            low, high = target.declared() or (0.0, 0.0)
            columns = len(target.classes) if target.classes else ((low + high) / 2, (high - low) / 2)
        seed = None if self.model.seed is None else self.model.seed + _OWN_WORDS
        trust = trust_of(self.model.estimator)
        if trust == "window":
            raise ConfigError("statistics beside a model need trust: process, nobody or shuffler, and no window")
        statistics = estimators.Statistics(declared, features, self.model.budget, trust, seed=seed)
        share = 1.0 if self.model.share is None else self.model.share
        return statistics, share / (share + math.fsum(one.share for one in statistics.declared)), columns


class StoredDefinition(Definition):
    """The definition that a store keeps."""

    promises: tuple[Promise, ...] = ()  # the promises before the present one, oldest first, also of former models
    written: dict[str, object] | None = None  # as of `SourceSettings`, for `predict`
    own_budgets: bool = False  # as of `SourceSettings`

    def of_source(self) -> dict[str, Any]:
        return {"written": self.written, "own_budgets": self.own_budgets}

    def text(self) -> str:
        kept = {name for name in ("promises", "written", "own_budgets") if getattr(self, name)}
        more = self.model_dump(mode="json", include=kept, exclude_none=True)
        return json.dumps(json.loads(super().text()) | more) if more else super().text()

    def _check_seed(self) -> None:
        """A store has it, so it was checked."""

    def _check_cap(self, spent: Budget) -> None:
        """A store has it, so it was checked."""

    def notes(self) -> list[str]:
        """Notes for a statement: which subjects are one person, and what a record's own time is."""
        whole = "subjects are whole numbers, and 7, +7 and 007 are one person"
        subject = self.schema_.subject
        subjects = [] if subject is None or subject.type == "text" else [whole]
        time = self.schema_.time
        times = [] if time is None else [f"a record's own time is its column {time.column!r}"]
        return [*subjects, *times]

    def limits(self, losses: int) -> list[str]:
        """What makes the promise of a statement weaker: `losses` of commits, and what was promised before."""
        learned = any(old.learned for old in self.promises if old.ended)
        return [*self._lost(losses), *self._changes(), *([self.said_of_former()] if learned else [])]

    def said_of_former(self) -> str:
        """What former models have spent, as a sentence."""
        former = [[old for old in promises if old.learned] for promises in models(self.promises)[:-1]]
        listed = ", ".join(
            f"{each[-1].learned:,} records with {', then '.join(dict.fromkeys(old.spend for old in each))}"
            for each in filter(None, former)
        )
        mine = True, self.cap, self.people, self.time
        counted = all((old.private, old.cap, old.people, old.time) == mine for old in self.promises)
        bounds = "bounds" if counted else "does not bound"
        held = "" if self.cap is None else f"; the cap {self.cap} {bounds} a person's total over all of them"
        return (
            f"before the schema or the model was changed, this job learned {listed}: these spends are kept, this model"
            f" spends again, and a person in both has spent both budgets{held}"
        )

    def _lost(self, losses: int) -> list[str]:
        """What holds after losses: before and after each one, a run of its own kept the guarantee and the caps."""
        if not losses:
            return []
        times = "once" if losses == 1 else f"{losses} times"
        cap = "" if self.cap is None else " and every cap"
        return [
            f"the store lost commits, and the operator went on, {times}: what was learned in them may have been shown,"
            f" their spends are not counted, and their records may have been learned again. Every spend{cap} above may"
            f" hold {losses + 1} times over: what is guaranteed is the sum of {losses + 1} such budgets, if"
            " budget and cap were not larger in what was lost"
        ]

    def _changes(self) -> list[str]:
        notes = [
            f"until {old.learned:,} records were learned, the default budget was {parse_budget(old.budget)}"
            + ("" if old.cap is None else f" and the cap {old.cap}")
            for old in models(self.promises)[-1]
            if old.learned
        ]
        if notes and self.cap is not None:
            caps = [
                parse_cap(cap) for cap in (self.cap, *(old.cap for old in models(self.promises)[-1])) if cap is not None
            ]
            bounds = "the largest cap of all times" if len(loosest(caps)) == 1 else "caps of several kinds together"
            notes.append(f"the operator changed this: a person's total is bounded by {bounds} only")
        return notes


def read_definition(text: str) -> StoredDefinition:
    """Read a definition from the `text` of `Definition.text`. Raises `ConfigError` for any other text."""
    if not text:
        raise ConfigError("this store holds no model: it belongs to a shuffler, or was made without a configuration")
    try:
        return StoredDefinition.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"the store's configuration: {problems(error)[0][1]}") from None
