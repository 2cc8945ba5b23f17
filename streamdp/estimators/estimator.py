"""The estimators: admission, counts, the guarantee, River's methods and states, around a learner that knows arrays.

A record goes this way: its features are packed into a row (`features`), it is admitted by the ledger and its spend is
counted, it may be asked about the model's error (`validation`), and the learner learns it (`streamdp.learners`). What
is shown follows from the learner's released point.

Threads may share an estimator: whatever learns, absorbs, loads, saves or packs a record holds the lock of its random
words. An exception at any moment, such as Ctrl-C, leaves a state in which every spend is counted: budgets are counted
before learning, subjects are noted before their records enter a batch, and the compiled loop counts each record with
its step or its noise. Records may be lost. A signal handler may read an estimator but should not learn: the record that
it interrupts may be learned as zeros.
"""

import copy
import os
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from river import base as river_base

from streamdp.data.floats import flag, floats
from streamdp.data.records import MOST_RECORDS, RawRecord, Subject, check_record
from streamdp.data.subjects import SPELLING, subject_list
from streamdp.errors import (
    ConfigError,
    NotAtBoundaryError,
    NotAvailableError,
    SchemaError,
    StreamDPError,
    check_path,
    check_whole,
)
from streamdp.estimators.admission import Admission
from streamdp.estimators.features import Features, SchemaWarning, features_of
from streamdp.estimators.frames import array_of, as_frame, names_of
from streamdp.estimators.held_out_statistics import HeldOutStatistics
from streamdp.estimators.hints import WEIGHT, check_parameters, check_weight, missing
from streamdp.estimators.labels import TRUTH_VALUES
from streamdp.estimators.packing import RecordLearner
from streamdp.estimators.parameters import Parameters
from streamdp.estimators.prediction import Prediction
from streamdp.estimators.traps import (
    warn_if_dear,
    warn_if_far,
    warn_if_many,
    warn_if_raw,
    warn_if_repeated,
    warn_if_weak,
)
from streamdp.learners.learner import WITH_DELTA, Collector, Learner, share_changes
from streamdp.learners.linear_problem import LinearProblem
from streamdp.learners.side_statistics import SideStatistics, divided
from streamdp.ledger.charged import CapHistory, read_history
from streamdp.ledger.periods import Cap, promises
from streamdp.optim.losses import LOSSES, Loss, loss_for
from streamdp.privacy.entropy import AnyRng, Entropy, SeededEntropy, entropy, fresh_words
from streamdp.privacy.guarantees import (
    SERVICEABLE,
    Budget,
    Guarantee,
    about_delta,
    amount,
    parse_budget,
    with_delta,
)
from streamdp.privacy.release import JOINED, LEFT_OUT, READS, REFUSED
from streamdp.privacy.statement import statement
from streamdp.reading.change import about
from streamdp.reading.doubts import ON_BORDER, of_model
from streamdp.validation.quality import Quality
from streamdp.validation.tasks import Task

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from streamdp.data.schema import Schema
    from streamdp.ledger.ledger import Ledger

FORMAT = 1  # of states
_NOT_FINITE = (
    "expected finite numbers, got NaN or an infinity: leave such records out, or declare in features={...} what missing"
    " values mean"
)
AnyLearner = TypeVar("AnyLearner", bound=Learner)


def of_learner(kind: object, name: str) -> Any:
    """A public attribute of estimators that is the `name` of their learner, a `kind`, with its documentation."""
    return property(lambda self: getattr(self.learner, name), doc=getattr(kind, name).__doc__)


def counted(name: str, doc: str) -> Any:
    """A public attribute of estimators that is the count `name` of their learner, with a doc string."""
    return property(lambda self: self.learner.counts[name], doc=doc)


class Estimator(river_base.Estimator, Parameters):
    """What the public estimators share. A family of them declares parameters, and makes its learner."""

    learns: type[Learner]
    predicts_classes: ClassVar[bool] = False
    """Whether targets are classes, and not numbers."""
    validation: Mapping[str, object] | None = None
    target: tuple[float, float] | Mapping[str, object] | None = None
    held_out: HeldOutStatistics | None = None
    """What records say about the model's error; None without `validation`."""
    estimated: Any = None
    """The side statistics of the records that are learned, as an estimator to be read; None: there are none."""
    prediction: Prediction | None = None
    """What predicts; None before the features are known."""
    _admission: Admission
    _covers = "this model"
    _coded = False
    """Whether a category is one column, its code: see `Schema`."""
    _index: dict[Hashable, float] | None = None
    """The encoded targets of the classes; None for numbers."""

    def __new__(cls, *args: object, **given: object) -> Self:
        """Make an estimator. Raises `ConfigError` for a parameter that it does not have."""
        check_parameters(cls, given)
        made = super().__new__(cls)
        made._admission = Admission()
        return made

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name)

    def __post_init__(self) -> None:
        self._set_up()
        if self.features is not None:
            self._declare(self.features)

    def _set_up(self) -> None:
        """Check the parameters, and make what does not depend on the features."""
        usual = WITH_DELTA if self._needs_delta else self.learns.default_budget
        read = partial(with_delta, delta=WITH_DELTA.delta) if self._needs_delta else parse_budget
        budget = usual if self.budget is None else read(self.budget)  # as for a job; the guarantee says the delta
        self._admission.budget = budget
        if not isinstance(self.intercept, bool | np.bool_):
            raise ConfigError(f"intercept: expected True or False, got {self.intercept!r}")
        self._features: Features | None = None
        domain = self.learns.default_domain if self.domain is None else self.domain
        loss, bounds = self._resolve_loss(), self._target_bounds()
        if self.validation is not None:
            task = self._target_task(loss)
            self.held_out = HeldOutStatistics(self.validation, task, budget, bounds is not None, self.learns)
        classes, given = len(self._index or ()), self.domain is not None
        problem = LinearProblem(loss, domain, bool(self.intercept), classes, bounds, given)
        learned, spend = (budget, budget) if self.held_out is None else (self.held_out.learned, self.held_out.spend)
        self.learner = self._make_learner(problem, learned, self._words())
        self._spend(spend)

    @property
    def _needs_delta(self) -> bool:
        """Whether the default budget and a text without delta get the usual one."""
        return self.learns.needs_delta

    def _spend(self, budget: Budget) -> None:
        """Let a record spend a budget on all that it is used for, in one release."""
        self._admission.spend, self.learner.fast = budget, None
        warn_if_weak(budget)
        if self.learner.open is not None:
            self.learner.open.use(budget)

    @property
    def sides(self) -> list[Any]:
        """The held-out and side statistics that there are, as far as the features are known."""
        return [] if self._features is None else [one for one in (self.held_out, self.learner.side) if one is not None]

    @property
    def ledger(self) -> "Ledger | None":
        """The caps of people, under which records are admitted."""
        return self._admission.ledger

    @ledger.setter
    def ledger(self, ledger: "Ledger | None") -> None:
        self._admission.use(ledger)
        if "learner" in vars(self):  # not while it is constructed
            self.learner.fast = None  # which asks no ledger

    @property
    def n_refused(self) -> int:
        """Records that were refused because their subject's cap was reached, or for their budget."""
        return self._admission.refused

    @property
    def n_left_out(self) -> int:
        """Records that spent nothing and were not learned, below the cap of their subject.

        Others of it share the noise of the same batch or window, or they are of a window of time that is over.
        """
        return self._admission.left_out

    def add_unlearned(self, refused: int, left_out: int) -> None:
        """Count records that other processes did not learn."""
        self._admission.refused += refused
        self._admission.left_out += left_out

    def _words(self) -> AnyRng:
        """The source of the noise; what a learner keeps that is noisy from the first record on has no words in it."""
        return fresh_words(self.seed) if self.learns.noisy_from_first else entropy(self.seed)

    def _make_learner(self, problem: LinearProblem, budget: Budget, rng: Any) -> Learner:
        """The learner for the parameters. Raises `ConfigError` and `BudgetError` for parameters out of range."""
        raise NotImplementedError

    def _exchange(self, learner: Learner) -> None:
        self.learner = learner

    def _learner(self, kind: type[AnyLearner], what: str) -> AnyLearner:
        """The learner, for `what` needs that its columns are known. Raises `NotAvailableError` before."""
        self._need_features(what)
        assert isinstance(self.learner, kind)
        return self.learner

    @property
    def takes_reports(self) -> bool:
        """Whether people's devices may report to it, with reports about single records."""
        return False

    def _take_report(self, report: Any, subject: Subject | None) -> None:
        """Check a report of a person's side, ask the ledger and take it in: see `absorb` of what devices report to."""
        self._need_features("absorb")
        learner: Any = self.learner
        self._admission.need_subjects((subject,))
        with learner.rng.lock:
            take = learner.taken(report)
            if self._admission.admit_report(learner, subject, report.budget, report.private):
                take()

    @property
    def trust(self) -> str:
        """The party that must be trusted, and with what."""
        return self.learner.trust

    @property
    def neighbours(self) -> str:
        """The streams that the guarantee makes hard to distinguish."""
        return self.learner.neighbours

    @property
    def commits_at_every_boundary(self) -> bool:
        """Whether `close_batch` may have to leave a batch open: then every boundary is worth a commit."""
        return self.learner.commits_at_every_boundary

    @property
    def n_seen(self) -> int:
        """Records taken: those that were learned, and those of an open batch or window, of which nothing is."""
        return int(self.learner.seen.item())

    def __getstate__(self) -> dict[str, object]:
        with self.learner.rng.lock:
            return self.__dict__.copy()

    def clone(self, new_params: dict[str, object] | None = None, include_attributes: bool = False) -> Self:
        """Return a new estimator with the same parameters.

        Parameters
        ----------
        new_params
            Other values of parameters, by name.
        include_attributes
            Whether the new one has learned what this one has: then it is a copy, with the state of the last boundary.

        Raises `ConfigError` for names that are no parameters, and for a copy with other parameters, because a state
        belongs to its parameters.
        """
        if not include_attributes:
            known = self._get_params()
            if new_params is not None and not (isinstance(new_params, Mapping) and all(n in known for n in new_params)):
                raise ConfigError(f"clone: expected values of parameters by name: {', '.join(known)}")
            clone = super().clone(None if new_params is None else dict(new_params))
            self._admission.share_clones(clone._admission)  # noqa: SLF001 - the same class
            if self._side_of is not None:
                clone.add_statistics(*self._side_of)
            return clone
        if new_params:
            raise ConfigError("clone: expected new_params or include_attributes, got both")
        return copy.deepcopy(self)

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # two estimators with one state would each count half of its spends

    # -- schema ------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> tuple[Any, ...]:
        return () if self._features is None else self._features.names

    @property
    def _on_device(self) -> dict[str, Any]:
        """What all randomizers get: raw features if the schema is declared, and random words of their own."""
        problem, rng = self.learner.problem, self.learner.rng
        return {
            "loss": problem.loss,
            "features": self.features if isinstance(self.features, Mapping) else self._names,
            "intercept": problem.intercept,
            "rng": rng if isinstance(rng, SeededEntropy) else Entropy(),
            "classes": tuple(self._index or TRUTH_VALUES),
        }

    def _declare(self, declared: Sequence[object] | Mapping[Any, object]) -> Features:
        self._features = features = features_of(
            declared, type(self).__name__, self._index or self.learner.problem.target, self._coded
        )
        try:
            self.learner.begin(features.columns)
            if features.columns.private and not self.learner.finds_bounds():
                raise ConfigError(
                    "bounds: private needs trust: window and no domain, because Newton's steps of a window find them: "
                    f"declare public bounds for {type(self).__name__}"
                )
            self.prediction = Prediction(features, self.learner, bool(self.intercept))
            if self.held_out is not None:
                self.held_out.begin(self.learner, self.prediction, self.seed)
        except BaseException:
            self._features = self.prediction = None  # otherwise the next record would be learned
            raise
        return features

    def _adopt(self, names: Iterable[object]) -> Features:
        """Take the names of the first record as the public schema, sorted."""
        message = "no features were declared: the names of the first record are taken as public schema"
        warnings.warn(f"{type(self).__name__}: {message}", SchemaWarning, stacklevel=3)
        return self._declare(sorted(names, key=str))

    def _matrix(self, X: object) -> np.ndarray:
        """An array (n, p) of numbers, whose columns are the features if none were declared."""
        rows = floats("X", X)
        if rows.ndim != 2:
            raise SchemaError(f"X: expected shape (n, p), got {rows.shape}")
        if self._features is None:
            self._declare([f"x{j}" for j in range(rows.shape[1])])
        return rows

    def _raw_rows(self, X: object) -> np.ndarray:
        """The encoded columns of an array X of raw numbers."""
        rows = self._matrix(X)
        return self._need_features("X").array(rows)

    def _encoded_rows(self, X: object) -> np.ndarray:
        """An array X of encoded columns."""
        rows = self._matrix(X)
        if rows.shape[1] != len(self._names):
            raise SchemaError(f"X: expected {len(self._names)} columns, got {rows.shape[1]}")
        return rows

    def _finite_rows(self, rows: np.ndarray) -> np.ndarray:
        if not np.isfinite(rows).all():
            raise SchemaError(f"X: {_NOT_FINITE}")
        return rows

    # -- learning ----------------------------------------------------------------------------------------------

    def learn_one(
        self,
        x: RawRecord,
        y: object,
        *,
        budget: Budget | str | None = None,
        subject: Subject | None = None,
        w: float = WEIGHT,
    ) -> None:
        """Learn one record.

        Parameters
        ----------
        x
            Features by name, finite numbers. Undeclared names are ignored, missing ones count as 0; each warns once.
        y
            The target: a finite number, or one of the declared classes.
        budget
            What this record may spend; the estimator's `budget` if None. If records share their noise, all spend the
            estimator's budget: a record that allows more is learned, and one that allows less is refused and counted.
        subject
            The person that the record is about, for the ledger: text, bytes or a whole number. If records share their
            noise, a further record of a subject within a batch is left out and counted (`privacy.release`).
        w
            River's weight of a record: 1, because each record has the same share in the noise.

        Raises `ConfigError` for another weight; `SchemaError` for a bad record, and for one without a subject if there
        is a ledger, and `BudgetError` for a budget that the mechanism cannot serve (see `guarantees.SERVICEABLE`), all
        before anything is learned or spent. A record over its subject's cap is counted in `n_refused` and is not
        learned.
        """
        if w is not WEIGHT:
            check_weight(w)
        learner = self.learner
        with learner.rng.lock:
            fast = learner.fast if budget is None else None
            if fast is None or not fast.learn(x, y, learner.rng, subject):
                self._learn_record(x, y, budget, subject)

    def _learn_record(self, x: RawRecord, y: object, budget: Budget | str | None, subject: Subject | None) -> None:
        """As `learn_one`, for any record; the caller holds the lock."""
        admission = self._admission
        if subject is None and admission.ledger is not None:
            admission.need_subjects(None)
        if self.learner.refusal is not None:
            raise ConfigError(self.learner.refusal)
        spend = admission.spend if budget is None else admission.spend_of(self.learner, budget)
        if spend is None:
            return
        known = y if self._plain_targets and self._features is not None else self._encode_target(y)
        record = self._features or self._adopt(check_record(x))
        try:
            if not record.encoder.pack(x, known, record.buffer):
                record.pack(x, self._encode_target(y), record.buffer)
            self._learn_row(record, spend, budget is not None, subject)
        finally:
            try:
                record.buffer[:] = 0.0
            except BaseException:  # such as Ctrl-C at this very place
                record.buffer[:] = 0.0
                raise

    def _learn_row(self, record: Features, spend: Budget, own: bool, subject: Subject | None) -> None:
        """Learn the row in the buffer of `record`; `own`: whether it brought its budget."""
        admission, learner, X, y = self._admission, self.learner, record.row, record.target
        if learner.side is not None:
            self._check_columns(X)
        if not learner.seen[0]:
            warn_if_far(self, X, y if self._has_open_target else None)
        if learner.dated and learner.keeps(y) is not None:
            admission.left_out += 1
        else:
            refused = admission.admit(learner, self.held_out, X, y, spend, None, [subject], spend if own else None)
            of_subject = subject is not None
            if not (own or learner.fast or (of_subject and isinstance(learner, Collector))) and refused is None:
                self._learn_faster(of_subject)

    def _learn_faster(self, of_subjects: bool) -> None:
        """Let plain records be learned at compiled speed from now on, until the learner or another spend ends it."""
        features, learner, ledger = self._features, self.learner, self._admission.ledger
        held_out = self.held_out
        if features is None or learner.side is not None or not self._plain_targets:
            return
        if of_subjects and (ledger is None or not ledger.has_gates):
            return
        if (kernel := learner.record_kernel()) is not None:
            gate = None if ledger is None else ledger.gate(self._admission.spend, learner.open)
            fast = RecordLearner(features.encoder, kernel, gate)
            if learner.open is not None:
                fast.count(learner.seen, *learner.room_of_kernel())
            if learner.open is not None and gate is not None:
                fast.leave_out(learner.open.records, READS * learner.full, self._admission.left)
            if held_out is not None and not (held_out.summed and held_out.takes_records):
                fast.ask(held_out.validator.asking, not held_out.takes_records, learner.seen)
            learner.fast = fast

    def learn_many(self, X: "pd.DataFrame | pl.DataFrame | np.ndarray", y: object, *, w: object = WEIGHT) -> None:
        """Learn the rows of a frame in order: the same result as `learn_one` in a loop, with the same noise.

        Parameters
        ----------
        X
            One record a row, features by column, as `learn_one` takes them: a DataFrame of pandas or polars, a table
            of Arrow, or an array whose columns are the declared features in their order.
        y
            The targets of the rows.
        w
            See `learn_one`.

        Raises `ConfigError` for other weights, `SchemaError` for bad records, and if there is a ledger, because the
        rows have no subjects; all before anything is learned or spent.
        """
        check_weight(w)
        self._admission.need_subjects(None)
        warn_if_repeated(self, X, y)
        X, y = as_frame(X), array_of(as_frame(y))
        if hasattr(y, "columns"):
            raise SchemaError("y: expected the targets of the rows, a series or an array; got a frame: take its column")
        with self.learner.rng.lock:
            names = names_of(X)
            if self._features is None and names is None:
                self._matrix(X)  # names the columns
            rows = (self._features or self._adopt(names or ())).frame(X)
            self._learn_batch(rows, self._encode_targets(y), None, None)

    def learn_arrays(
        self,
        X: np.ndarray,
        y: np.ndarray,
        budgets: np.ndarray | None = None,
        subjects: Sequence[Subject | None] | None = None,
    ) -> np.ndarray | None:
        """Learn n records of numbers in order, at compiled speed: the same result as `learn_one` in a loop.

        Parameters
        ----------
        X
            (n, p) floats: the declared features in their order, raw, as `learn_one` takes them. A schema with
            categories or dates needs `learn_many`.
        y
            (n,) targets, as `learn_one` takes them: numbers, or labels of `classes`.
        budgets
            (n,) amounts of the estimator's kind of budget (epsilon or mu) within `guarantees.SERVICEABLE`, NaN for the
            default; None: the default for all.
        subjects
            n subjects for the ledger, or None without one.

        Returns the (n,) mask of the records that were learned if any was refused, else None.
        Raises `SchemaError` for wrong shapes, values that are not finite and, if there is a ledger, records without a
        subject, before anything is learned or spent.
        """
        warn_if_repeated(self, X, y)
        with self.learner.rng.lock:
            outcome = self._learn_rows(self._raw_rows(X), self._encode_targets(y), budgets, subjects)
        return None if outcome is None else outcome == JOINED

    def learn_encoded(
        self,
        X: np.ndarray,
        y: np.ndarray,
        budgets: np.ndarray | None = None,
        subjects: Sequence[Subject | None] | None = None,
    ) -> np.ndarray | None:
        """As `learn_arrays`, of records that the schema has encoded, as jobs learn.

        Parameters
        ----------
        X
            (n, p) floats: the columns `feature_names` in their order. With declared bounds they are numbers in [-1, 1]
            and indicators of categories, at most one of which is 1; without, they are what `learn_arrays` takes.
        y
            (n,) floats; for a classifier the index of each class in `classes`.
        budgets
            (n,) amounts of the estimator's kind of budget (epsilon or mu) within `guarantees.SERVICEABLE`, NaN for the
            default; None: the default for all.
        subjects
            n subjects for the ledger, or None without one.

        Returns what became of each record, (n,): 0 if it was learned, 1 if it was refused, 2 if it was left out
        (`privacy.release`); None if all were learned.
        Raises `SchemaError` for wrong shapes, values that are not finite and, if there is a ledger, records without a
        subject, before anything is learned or spent.
        """
        with self.learner.rng.lock:
            X = self._encoded_rows(X)
            y = self._learned_targets(floats("y (for a classifier, the index of each class)", y))
            columns = self._need_features("X").columns
            if columns.declared and not self.n_seen and self.estimated is not self:  # statistics check their codes
                warn_if_raw(self, X, columns.apart)
            return self._learn_rows(X, y, budgets, subjects)

    def _learn_rows(
        self, X: np.ndarray, y: np.ndarray, budgets: np.ndarray | None, subjects: Sequence[Subject | None] | None
    ) -> np.ndarray | None:
        """As `learn_encoded`; the caller holds the lock."""
        subjects = None if subjects is None else subject_list(subjects, len(X))
        self._admission.need_subjects(subjects)
        if budgets is None:
            return self._learn_batch(X, y, None, subjects)
        budgets = floats("budgets", budgets).copy()
        if budgets.shape != y.shape:
            raise SchemaError(f"budgets: expected shape ({len(X)},), got {budgets.shape}")
        if (default := np.isnan(budgets)).all():
            return self._learn_batch(X, y, None, subjects)
        per_record = self.learner.per_record_budgets
        budgets[default] = amount(self.learner.budget if per_record else self.record_budget)
        least, largest = SERVICEABLE
        if not np.all((budgets >= least) & (budgets <= largest)):
            expected = f"numbers from {least:.3g} to {largest:.3g}, or NaN for the default"
            raise SchemaError(f"budgets: expected {expected}")
        return self._learn_batch(X, y, budgets, subjects)

    @cached_property
    def _plain_targets(self) -> bool:
        """Whether targets are numbers or labels as they come, which are encoded with their record."""
        return not isinstance(self.target, Mapping)

    @property
    def _has_open_target(self) -> bool:
        """Whether what is predicted is a number without declared bounds."""
        return False

    def _learn_batch(
        self, X: np.ndarray, y: np.ndarray, amounts: np.ndarray | None, subjects: Sequence[Subject | None] | None
    ) -> np.ndarray | None:
        """Check, admit, count and learn rows; return as `learn_encoded`."""
        if self.learner.refusal is not None:
            raise ConfigError(self.learner.refusal)
        self._check_rows(X, y)
        if amounts is None:
            warn_if_dear(self)
            warn_if_many(self, self.n_seen + len(X))
        if not self.n_seen:
            warn_if_far(self, X, y if self._has_open_target else None)
        admission, learner, held_out = self._admission, self.learner, self.held_out
        outcome = np.full(len(X), JOINED, dtype=np.uint8)
        if learner.dated and (timely := learner.keeps(y)) is not None:
            outcome[~timely] = LEFT_OUT
        if amounts is not None and not learner.per_record_budgets:
            outcome[~admission.allowed(amounts)], amounts = REFUSED, None
        spend = admission.spend if amounts is None else admission.budget
        if not outcome.any():
            return admission.admit(learner, held_out, X, y, spend, amounts, subjects)
        kept = np.flatnonzero(outcome == JOINED)
        mine = None if subjects is None else [subjects[i] for i in kept.tolist()]
        each = None if amounts is None else amounts[kept]
        learned = admission.admit(learner, held_out, X[kept], y[kept], spend, each, mine)
        admission.note(outcome)
        if learned is not None:
            outcome[kept] = learned
        return outcome

    def _check_rows(self, X: np.ndarray, y: np.ndarray) -> None:
        """Raise `SchemaError` unless these are n clean records."""
        if y.shape != (len(X),):
            raise SchemaError(f"y: expected shape ({len(X)},), got {y.shape}")
        if not (np.isfinite(X).all() and np.isfinite(y).all()):
            raise SchemaError(f"X, y: {_NOT_FINITE}")
        self._check_targets(y)
        self._check_columns(X)

    def _check_columns(self, X: np.ndarray) -> None:
        """Raise `SchemaError` unless side statistics may sum columns of `X`: the noise is for such as records give."""
        if self.learner.side is not None:
            self.estimated.check_columns(self.learner.side.coded(X))

    def _count(self, largest: Budget | None = None) -> None:
        """Count a spend, before the records that it is spent on are learned; None: what a batch or window spends."""
        self._admission.count(self.learner, largest or self.learner.budget)

    @property
    def record_budget(self) -> Budget:
        """All that a record without a budget of its own spends: on the model, its answer, and the statistics."""
        return self._admission.spend

    _side_of: tuple[object, float, tuple[float, float] | int | None] | None = None  # what `add_statistics` was given

    def add_statistics(self, statistics: Any, share: float, target: tuple[float, float] | int | None) -> None:
        """Estimate statistics of the records that are learned from now on, too.

        Parameters
        ----------
        statistics
            A `Statistics`, with the budget that is divided; it learns nothing by itself.
        share
            The share of the model in the budget, above 0 and below 1.
        target
            How a target becomes further columns of the statistics: see `SideStatistics`.

        Raises `ConfigError` for an estimator that collects records by person, with `validation`, and for another budget
        of the model than its part of the whole.
        """
        if isinstance(self.learner, Collector):
            need = "statistics beside a model need a learner of single records"
            raise ConfigError(f"{need}, and {type(self).__name__} holds the records of a person")
        if self.validation is not None:
            raise ConfigError("validation: with statistics beside the model no records answer; leave one of them out")
        whole: Budget = statistics.record_budget
        mine, theirs = divided(whole, share, statistics.trust)
        if self.learner.budget != mine:
            of = f"{mine!s}, the part of {whole} that statistics beside the model leave"
            raise ConfigError(f"budget: expected {of}, got {self.learner.budget}")
        self._side_of = statistics, share, target
        self.estimated = statistics = statistics.clone({"budget": theirs})
        model = repr((share, statistics.model_dict()))
        coding = statistics.coding(target is not None)
        self._spend(whole)  # first, for an exception between these lines
        self.learner.estimate(SideStatistics(statistics.learner, share, coding, target, model))

    def _encode_target(self, y: object) -> float:
        raise NotImplementedError

    def _encode_targets(self, y: object) -> np.ndarray:
        if not isinstance(y, Iterable) or getattr(y, "ndim", 1) == 0:
            raise SchemaError(f"y: expected the targets of the rows, got {type(y).__name__}")
        return np.array([self._encode_target(v) for v in y], dtype=float)

    def _learned_targets(self, y: np.ndarray) -> np.ndarray:
        return y

    def _check_targets(self, y: np.ndarray) -> None:
        """Raise `SchemaError` for encoded targets out of range."""

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def private(self) -> bool:
        """False without noise, with a seed, because its noise can be subtracted, and after such a state was loaded.

        It follows from the generator that is in use, not from the parameters, which may be changed.
        """
        side = self.estimated is None or self.estimated is self or self.estimated.private
        return self.learner.rng.private and self.learner.private and side and not self._admission.tainted

    @property
    def guarantee(self) -> Guarantee:
        """What holds for each single record learned so far, or for each unit that `neighbours` names."""
        return Guarantee(self._admission.spent, self.neighbours, self.learner.trust, self.private)

    @property
    def cap_history(self) -> CapHistory:
        """The caps under which the records learned so far were charged."""
        return self._admission.history

    @property
    def at_boundary(self) -> bool:
        """Whether the state may leave memory now: no raw record and no unreleased contribution is in memory."""
        return self.learner.pending == 0

    to_boundary: int = of_learner(Learner, "to_boundary")

    def boundary_within(self, records: int) -> int:
        """Return how many of the next records to learn so as to end at a boundary.

        Parameters
        ----------
        records
            How many records there are, up to 10^18. If no boundary is among them, this number is returned.

        Raises `ConfigError` for anything else.
        """
        check_whole("records", records, 0, MOST_RECORDS)
        return self.learner.boundary_within(records)

    def close_batch(self) -> None:
        """Come to a boundary now, so that the state may leave memory. Without batches there is nothing to do.

        An open batch ends with the records that it has. Privacy is that of a full batch: it has all the noise and fewer
        records, so it moves the estimate less. A window with too few users stays open, with a `WindowWarning`.
        """
        with self.learner.rng.lock:
            if not self.at_boundary:
                self.learner.close()

    least_records: int | None = of_learner(Learner, "least_records")
    on_border: bool = of_learner(Learner, "on_border")

    @property
    def quality(self) -> Quality | None:
        """What private answers say about the model; it spends nothing. None without `validation`.

        Errors are in the unit of the target that was given to `learn_one`.
        """
        return None if self._features is None or self.held_out is None else self.held_out.quality

    @property
    def looseness(self) -> float | None:
        """How many times half the width of the target's declared bounds is its unit, where that is learned privately.

        None before it is known, and without such bounds; 1 for estimators that do not learn it.
        """
        if self._features is None:
            return None
        _, scale, half = self.learner.place_of_target
        return half / scale if scale > 0 and np.isfinite(half) else None

    @property
    def near_bound(self) -> float | None:
        """The bound of the target within a spread of its learned centre; None if neither is, or if unknown."""
        if self.looseness is None:
            return None
        centre, spread, _ = self.learner.place_of_target
        near = [bound for bound in self._target_bounds() or () if abs(bound - centre) < spread]
        return self._of_target(near[0]) if near else None

    def _of_target(self, value: float) -> float:
        """A value of the target as it comes, of what `_target_bounds` is about."""
        return value

    n_changes: int = of_learner(Learner, "n_changes")
    last_change: int | None = of_learner(Learner, "last_change")

    @property
    def change_note(self) -> str | None:
        """What was noticed of changes of the stream, as a sentence without a full stop; None: nothing."""
        return about(self.n_changes, self.last_change)

    @property
    def doubts(self) -> list[str]:
        """Reasons to doubt the model, as sentences without a full stop: few records, wide bounds, private answers.

        They follow from what was released, and spend nothing. Without `validation`, a model may be worse than a
        constant without one.
        """
        return of_model(self, self.quality)

    def statement(self, cap: Cap | None = None) -> str:
        """Return the guarantee in words. A cap in it is one under which records were charged (see `ledger.charged`).

        Parameters
        ----------
        cap
            For a model without a ledger that was read from a store: the cap of its job.
        """
        of_database = cap is not None
        if self.ledger is not None:
            cap, of_database = self.ledger.cap, self.ledger.of_database
            self.ledger.read_history()
        alone = f"{self._covers} alone, and each record as if it was given once"
        history = self.cap_history
        bounds = [] if history.uncapped else history.bounds() or ([] if cap is None else [cap])
        spends = f"the spends of a person's {self.learner.unit.several} add up (epsilons add, deltas add, mu^2 add)"
        per_subject = history.people(cap, " over all jobs with a cap in its database" if of_database else "", spends)
        if bounds and of_database:
            alone = (
                f"every job with a cap in its database, and no other, for a person's total, and for all else {alone}"
            )
        promise, people = [], []
        if not self.learner.rng.private:
            promise.append("the noise comes from a seed, for tests; anyone who knows the seed can subtract the noise")
        if self.features is None:
            promise.append("no features were declared; the first record's names were taken as public")
        if bounds and of_database and self.ledger is None:
            people.append(
                "the caps are those of the commit that is read here: if a cap was raised since, for all or for one "
                "person, other jobs may have charged more, which `streamdp ledger status` shows"
            )
        people += dict.fromkeys(said for bound in bounds for said in promises(bound, self.learner.unit.several))
        if bounds or isinstance(self.learner, Collector):
            people.append(SPELLING)
        learned = [] if self.learner.open is None else self.learner.open.said(bool(bounds))
        learned += self.learner.caveats(self._admission.spent, bool(bounds), any(s.takes_records for s in self.sides))
        learned += [caveat for side in self.sides for caveat in side.caveats(self.learner)]
        if pending := self.learner.pending:
            learned.append(
                f"{pending:,} further records are in an open batch or window, and nothing of them is released"
            )
        use = [] if self.change_note is None else [self.change_note]
        use += [doubt for doubt in self.doubts if doubt != ON_BORDER]  # which the learner says of its domain
        counts = {"records learned": self.learner.n_released, "refused": self.n_refused, "left out": self.n_left_out}
        *most, last = (f"{n:,} {name}" for name, n in counts.items() if n or name != "left out")
        return statement(
            f"Privacy statement after {', '.join(most)} and {last}.",
            self.guarantee,
            per_subject,
            {
                "The promise": promise,
                "People": people,
                "How it learns": learned,
                "About the use of the model, not about privacy": use,
                "What this covers": [
                    f"this statement covers {alone}",
                    "it does not cover further models (streamdp.account), further passes, and steps of a pipeline that "
                    "learn (streamdp.preprocessing.check_pipeline)",
                ],
            },
            self.learner.unit,
            limits=about_delta(self._admission.spent, self.n_seen),
        )

    # -- the model --------------------------------------------------------------------------------------------------

    def _resolve_loss(self) -> Loss:
        loss = loss_for(self.loss)
        if loss.of_classes != self.predicts_classes:
            names = ", ".join(kind.name for kind in LOSSES.values() if kind.of_classes == self.predicts_classes)
            raise ConfigError(f"{type(self).__name__}: loss must be one of {names}, got {loss.name}")
        return loss

    def _target_bounds(self) -> tuple[float, float] | None:
        return None

    def _target_task(self, loss: Loss) -> Task:
        """What is predicted with a loss, and how wrong that may be."""
        raise NotImplementedError

    def _decided(self, scores: np.ndarray) -> np.ndarray:
        """The predictions (n,) that follow from linear predictors."""
        raise NotImplementedError

    def _need_features(self, what: str) -> Features:
        if self._features is None:
            raise NotAvailableError(f"{what}: declare `features` first, or learn a record")
        return self._features

    def _predicting(self, what: str) -> Prediction:
        """What predicts, for `what` needs it. Raises `NotAvailableError` before the features are known."""
        self._need_features(what)
        assert self.prediction is not None
        return self.prediction

    def need_learned(self, what: str) -> None:
        """Raise `NotAvailableError` while nothing is learned.

        Parameters
        ----------
        what
            What needs it.
        """
        self._need_features(what)
        if self.learner.n_released:
            return
        more = "learn records first"
        if pending := self.learner.pending:
            more = f"{pending:,} records wait in an open batch or window, which ends after {self.to_boundary:,} more"
        raise NotAvailableError(f"{what}: nothing is learned yet: {more}")

    @property
    def theta(self) -> np.ndarray:
        """A copy of the estimate (d,): coefficients by feature, the intercept, Huber's scale; K blocks for K classes.

        With a public schema as `features` it is in original units, except for models without an intercept, whose
        coefficients are of columns scaled to [-1, 1].

        While nothing is learned it is the first point, which is public and by which `predict_one` predicts; `weights`,
        which people read, are empty. Raises `NotAvailableError` before the features are known.
        """
        return self._predicting("theta").theta()

    @property
    def weights(self) -> dict[Any, Any]:
        """The estimate by name; the intercept under "(intercept)", Huber's scale under "(error spread)".

        For more than two classes a dict by class of dicts by name. Empty while nothing is learned.
        """
        if not self.learner.n_released:
            return {}
        return self._named(self.theta, [*self._names, *(["(intercept)"] if self.intercept else [])])

    def _named(self, theta: np.ndarray, names: list[object]) -> dict[object, object]:
        loss, values = self.learner.problem.loss, theta.tolist()
        scale = [values.pop()] if loss.has_scale else []
        named = dict(zip(names, values, strict=True))
        if scale and not loss.grows:  # the scale of a loss that grows is not the spread of errors
            named["(error spread)"] = scale[0]
        return named

    @property
    def feature_names(self) -> tuple[Any, ...]:
        """The names of the encoded columns. Raises `NotAvailableError` before the features are known."""
        return self._need_features("feature_names").names

    @property
    def link(self) -> str | None:
        """What is linear: the "log" of the target, or of its mean; None: the target as it comes, or a score."""
        return "log" if isinstance(self.target, Mapping) or self.learner.problem.loss.log_link else None

    @property
    def cut(self) -> tuple[float, float] | None:
        """The bounds of what is linear, to which predictions are cut; None: there are none."""
        return self._target_bounds()

    @property
    def encoder(self) -> "Schema | None":
        """The declared public schema, which encodes raw records; None if `features` are names."""
        return self._need_features("encoder").schema

    def linear(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the coefficients (K, p) of the encoded columns and the intercepts (K,), of K linear predictors.

        Raises `NotAvailableError` while nothing is learned.
        """
        self.need_learned("linear")
        return self._predicting("linear").linear()

    def moderation(self) -> dict[str, object] | None:
        """What `moderation` needs for the probabilities of two classes, as plain numbers; None: it is not used.

        The squares are those of (column - centre) / scale, and the constant.
        """
        return self._predicting("moderation").moderation()

    def predict_arrays(self, X: np.ndarray) -> np.ndarray:
        """Return the (n,) predictions, numbers or labels of classes, as `predict_one` does.

        Parameters
        ----------
        X
            As for `learn_arrays`.

        Raises `SchemaError` for what `learn_arrays` refuses, and `NotAvailableError` while nothing is learned.
        """
        self._need_features("predict_arrays")
        rows = self._raw_rows(X)
        self.need_learned("predict_arrays")
        return self._shown(self.predict_encoded(rows))

    def predict_encoded(self, X: np.ndarray) -> np.ndarray:
        """Return the (n,) predictions of encoded columns; of classes their indices, the first one of two equal ones.

        Parameters
        ----------
        X
            As for `learn_encoded`.

        While nothing is learned they are those of the first point, as of `predict_one`. Raises `SchemaError` for
        another shape, and for NaN and infinities.
        """
        return self._predicted(self._encoded_rows(X))

    def _predicted(self, X: np.ndarray) -> np.ndarray:
        """As `predict_encoded`, of the columns of a frame, which stand one after the other in memory."""
        return self._decided(self._scores(self._predicting("predict_encoded"), self._finite_rows(X)))

    def _scores(self, prediction: Prediction, X: np.ndarray) -> np.ndarray:
        """The linear predictors (n, outputs) of clean encoded columns, as they are shown."""
        return prediction.reader().scores(X)

    def _shown(self, predicted: np.ndarray) -> np.ndarray:
        """Predictions of encoded columns as people declare them."""
        return predicted

    # -- state --------------------------------------------------------------------------------------------------

    def model_dict(self) -> dict[str, object]:
        """What two estimators must share for their states to mean the same."""
        assert self._features is not None
        return {
            "estimator": type(self).__name__,
            "features": list(self._names),
            "loss": repr(self.learner.problem.loss),
            "intercept": bool(self.intercept),
            "columns": self._features.constants(),
            **{name: value for one in (*self.sides, self.learner) for name, value in one.model().items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers, text and arrays. No random words and no raw records are in it.

        Raises `NotAvailableError` before the features are known, and `NotAtBoundaryError` unless `at_boundary`.
        """
        self._need_features("state_dict")
        with self.learner.rng.lock:
            if not self.at_boundary:
                raise NotAtBoundaryError(
                    f"{self.learner.pending} records of an unfinished batch or open window are in memory: learn the "
                    f"{self.to_boundary} that are missing, or call close_batch()"
                )
            return {
                "format": FORMAT,
                **self.model_dict(),
                **self.learner.learned(),
                **{name: value for side in self.sides for name, value in side.state().items()},
                **self._counts(),
                "spent": [str(budget) for budget in self._admission.spent],
                "private": self.private,
                "caps": self.cap_history.state(),
            }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, for `streamdp.load`: JSON text with a checksum, for its owner only, and no pickle.

        Parameters
        ----------
        path
            The file. It appears whole or not at all, and an existing one is replaced.

        Raises the errors of `state_dict`; `ConfigError` for a model with a ledger, which a `Store` keeps, and for
        parameters that are no plain values; and `StoreError` if the file cannot be written.
        """
        from streamdp.estimators.saving import save

        with self.learner.rng.lock:
            if self.learner.side is not None:
                raise ConfigError("save: a model with statistics beside it is kept by a Store")
            save(check_path("save", path), type(self).__name__, self._get_params(), self.state_dict())

    def _repr_html_(self) -> str:
        from streamdp.estimators.html import page

        return page(self)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Take over a state; an open batch, window or user is discarded.

        An estimator without features takes those of the state. A state that was learned without privacy stays so:
        `guarantee.private` is False from then on.

        Parameters
        ----------
        state
            What `state_dict` of an estimator with the same parameters returned.

        Raises `ConfigError`, changing nothing, for a state of another format or model, and for values out of range;
        `BudgetError` for spends that cannot be read.
        """
        with self.learner.rng.lock:
            new = object.__new__(type(self))
            vars(new).update(self._attributes_of(new))
            try:
                with np.errstate(over="raise", divide="raise", invalid="raise"):
                    new._load(state)
            except KeyError as missing:
                raise ConfigError(f"state: lacks {missing}") from None
            except StreamDPError:
                raise
            except (TypeError, ValueError, ArithmeticError, IndexError):
                raise ConfigError("state: expected what state_dict returns") from None
            if self._features is not None:
                self.learner.discard()
            # At once: an exception, such as Ctrl-C, must not leave a half-loaded estimator.
            loaded = new._attributes_of(self)
            loaded["_admission"].keep_clones(self._admission)
            vars(self).update(loaded)

    def _attributes_of(self, owner: Self) -> dict[str, Any]:
        """Copies of the attributes for another one, of the last boundary. Random words and public names are shared."""
        state = self.__getstate__()
        shared = [
            value
            for name, value in state.items()
            if name == "_features"
            or (name[0] != "_" and name not in ("learner", "prediction", "held_out", "estimated"))
        ]
        shared.append(self.learner.rng)
        return copy.deepcopy(state, {id(self): owner} | {id(value): value for value in shared})

    def _load(self, state: Mapping[str, Any]) -> None:
        """Take over a state, in a copy that an error discards. Raises what `_read` raises."""
        if state["format"] != FORMAT:
            raise ConfigError(f"state: expected format {FORMAT}, got {state['format']}")
        if self._features is None:
            self._declare(list(state["features"]))
        for what, mine in self.model_dict().items():
            if state[what] != mine:
                raise ConfigError(f"state: expected {what} {mine}, got {state[what]}")
        spent = [parse_budget(text) for text in state["spent"]]
        counts = {name: int(state[name]) for name in self._counts()}
        if not all(0 <= n <= MOST_RECORDS for n in counts.values()):
            raise ConfigError(f"state: expected counts from 0 to {MOST_RECORDS}, got {counts}")
        tainted = self._admission.tainted or not flag(state, "private")
        self._admission.begin(spent, read_history(state["caps"]), tainted)
        self.learner.read(state)
        self._set_counts(counts)
        for side in self.sides:
            side.load(state)

    def merged(self, *others: Self) -> Self:
        """Return a new estimator of what this one and others have released, for learners of disjoint records.

        With method="newton" their noisy sums are added up, else answers are averaged, weighted by records (by users for
        windows). Open batches, windows and users are left out.

        The guarantee is the widest of theirs (parallel composition: each record entered one of them) if the records are
        disjoint; the spends of a person with records in several compose. What is lost against one pass over all
        records: each part has noise of its own, averages keep the bias of shorter runs, and there is no interval.

        Parameters
        ----------
        others
            Estimators of the same model, that is with the same parameters and features.

        Raises `ConfigError` if models differ or an estimator is given twice (a copy, which has the same records, is not
        recognised), and `NotAvailableError` before the features are known.
        """
        if not all(isinstance(other, Estimator) for other in others):
            raise ConfigError("merged: expected estimators of the same model")
        if len({id(part) for part in (self, *others)}) <= len(others):
            raise ConfigError("merged: expected estimators of disjoint records, got one of them twice")
        parts, models, result = (self, *others), [], self.clone()
        for part in parts:
            part._need_features("merged")  # noqa: SLF001 - the same class
            problem = part.learner.problem
            models.append(part.model_dict() | {"domain": problem.domain, "target": problem.target})
        for what in (name for model in models for name in model):
            agreed = models[0].get(what)
            if any(model.get(what) != agreed for model in models):
                raise ConfigError(f"merged: expected one {what}, got {agreed} and others")
        counts = [part._counts() for part in parts]  # noqa: SLF001
        learners: list[Any] = [copy.deepcopy(part.learner) for part in parts]  # of the last boundary
        share_changes(learners)
        if result._features is None:  # noqa: SLF001
            result._declare(list(self._names))  # noqa: SLF001
        history = CapHistory({}).joined(*(part.cap_history for part in parts))
        spent = [budget for part in parts for budget in part.guarantee.budgets]
        result._admission.begin(spent, history, not all(part.private for part in parts))  # noqa: SLF001
        weights = [learner.weight for learner in learners]

        def average(arrays: Sequence[np.ndarray]) -> np.ndarray:
            total: object = sum(weights)
            return sum(array * (weight / total) for array, weight in zip(arrays, weights, strict=True))

        result.learner.merge(learners, average)
        result._set_counts({name: sum(count[name] for count in counts) for name in counts[0]})  # noqa: SLF001
        for i, side in enumerate(result.sides):
            side.take_sum([part.sides[i] for part in parts])
        return result

    def _counts(self) -> dict[str, int]:
        """The numbers that add up when estimators are merged, without those of records that are pending."""
        counts = {"n_seen": self.learner.n_released, "n_refused": self.n_refused}
        return {**counts, "n_left_out": self.n_left_out, **self.learner.counts}

    def _set_counts(self, counts: Mapping[str, int]) -> None:
        learner, admission = self.learner, self._admission
        names = "n_seen", "n_refused", "n_left_out"
        learner.seen[0], admission.refused, admission.left_out = (counts[name] for name in names)
        learner.counts = {name: counts[name] for name in learner.counts}
