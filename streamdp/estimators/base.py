"""What all estimators share: admission, counts, the guarantee, and River's methods over code that works on arrays.

A subclass defines `_learn_rows(X, y, budget, amounts)`, `_allocate(p)` and the targets, and inherits the schema,
admission, counts, `learn_one`, `learn_many`, `learn_arrays`, `guarantee` and `statement`.

Threads may share an estimator: whatever learns, absorbs, loads, saves or packs a record holds the lock of its random
words. An exception at any moment, such as Ctrl-C, leaves a state in which every spend is counted: budgets are counted
before learning, subjects are noted before their records enter a batch, and the compiled loop counts each record with
its step or its noise. Records may be lost. A signal handler may read an estimator but should not learn: the record that
it interrupts may be learned as zeros.
"""

from __future__ import annotations

import copy
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from river import base as river_base

from streamdp.data.floats import floats
from streamdp.data.records import MOST_RECORDS, check_record
from streamdp.data.subjects import SPELLING, subject_list
from streamdp.errors import ConfigError, PrivacyWarning, SchemaError, check_whole
from streamdp.estimators.features import Features, SchemaWarning, features_of
from streamdp.estimators.few_records import too_few
from streamdp.estimators.frames import as_frame, names_of
from streamdp.estimators.packing import RecordLearner
from streamdp.ledger.charged import CapHistory
from streamdp.ledger.periods import Cap, promises
from streamdp.privacy.composition import widest
from streamdp.privacy.guarantees import (
    SERVICEABLE,
    ApproxDP,
    Budget,
    Guarantee,
    PureDP,
    amount,
    parse_budget,
    with_amount,
)
from streamdp.privacy.statement import RECORD, Unit, statement

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from streamdp.data.records import Subject
    from streamdp.ledger.ledger import Ledger
    from streamdp.privacy.entropy import Entropy, FreshWords, SeededEntropy

NEIGHBOURS = (
    "two streams that differ in one record, replaced by any other that fits the schema (replace-one); not protected, "
    "because public: how many records there are, which of them do not fit the schema and why, the subject and the "
    "budget of each, and so which ones a cap refuses"
)


_LOOKS, _MEETINGS = 64, 3
"""How many records of an estimator are compared with the last one, and after how many shared ones it warns."""
_TRANSIENT = 5
"""The references to a record that a pipeline has made: of the pipeline, its call, two methods here, and the count."""
_OWN = ("_looks", "_meetings", "_record", "_predictor", "_quick")
"""What copies make anew: what this estimator has met, and views of its arrays."""
_last = threading.local()
"""`ids`: of the last compared record of this thread and of the estimator that learned it. It holds no values."""


class StreamEstimator(river_base.Estimator):
    """Schema, admission, counts and the guarantee. The public estimators are subclasses."""

    trust: ClassVar[str]
    neighbours: ClassVar[str] = NEIGHBOURS
    commits_at_every_boundary: ClassVar[bool] = False
    """Whether `close_batch` may have to leave a batch open: then every boundary is worth a commit."""
    per_record_budgets: ClassVar[bool] = True
    """Whether each record may spend its own budget. If not, all records share the estimator's budget."""
    needs_subject: ClassVar[bool] = False
    """Whether the guarantee covers all records of a subject, so that each record must name its subject."""
    scales_columns: ClassVar[bool] = False
    """Whether centres and scales of columns are learned: then `features` is the public schema."""
    shuffled: ClassVar[bool] = False
    """Whether the estimator can learn from the messages of a separate shuffler."""
    _unit: ClassVar[Unit] = RECORD
    _default_budget: ClassVar[Budget] = PureDP(1.0)
    budget: Budget | str | None
    features: Sequence[str] | Mapping[str, Any] | None
    ledger: Ledger | None
    seed: int | None
    _rng: Entropy | SeededEntropy | FreshWords
    _quick: RecordLearner | None = None
    _looks = _LOOKS  # records that are yet to be compared
    _meetings = 0  # records that another estimator had learned just before
    _record = 0  # the address of the last compared record

    def _construct(self, arguments: Mapping[str, Any]) -> None:
        """Store the arguments of the constructor, `locals()`, under their own names, as River requires, and set up."""
        for name, value in arguments.items():
            if name != "self":
                setattr(self, name, value)
        self._set_up()
        if self.features is not None:
            self._declare(self.features)

    def _set_up(self) -> None:
        """Check the parameters and make what does not depend on the features. Subclasses extend it."""
        self._budget = self._default_budget if self.budget is None else parse_budget(self.budget)
        if self.ledger is not None and not hasattr(self.ledger, "admit_many"):
            raise ConfigError(f"ledger: expected a Ledger or None, got {type(self.ledger).__name__}")
        self._features: Features | None = None
        self._spent: tuple[Budget, ...] = ()
        self._history, self._charges = CapHistory({}), False  # the second: whether its ledger admitted records of it
        self._counted: Budget | None = None
        self._tainted = False
        self._seen = np.zeros(1, dtype=np.int64)
        self.n_refused = 0
        """Records that were refused because their subject's cap was reached, or for their budget."""

    @property
    def n_seen(self) -> int:
        """Records learned."""
        return int(self._seen.item())

    @n_seen.setter
    def n_seen(self, n: int) -> None:
        self._seen[0] = n

    def __getstate__(self) -> dict[str, Any]:
        with self._rng.lock:
            return {name: value for name, value in self.__dict__.items() if name not in _OWN}

    def clone(self, new_params: dict[str, Any] | None = None, include_attributes: bool = False) -> Self:
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
            return super().clone(None if new_params is None else dict(new_params))
        if new_params:
            raise ConfigError("clone: expected new_params or include_attributes, got both")
        return copy.deepcopy(self)

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # two estimators with one state would each count half of its spends

    # -- schema ------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> tuple[Any, ...]:
        return () if self._features is None else self._features.names

    def _declare(self, declared: Sequence[Any] | Mapping[Any, Any]) -> Features:
        self._features = features = features_of(declared, type(self).__name__)
        try:
            self._allocate(len(features.names))
        except BaseException:
            self._features = None  # otherwise the next record would be learned
            raise
        return features

    def _allocate(self, p: int) -> None:
        """Make the state for p features."""
        raise NotImplementedError

    def _adopt(self, names: Iterable[Any]) -> Features:
        """Take the names of the first record as the public schema, sorted."""
        message = "no features were declared: the names of the first record are taken as public schema"
        warnings.warn(f"{type(self).__name__}: {message}", SchemaWarning, stacklevel=3)
        return self._declare(sorted(names, key=str))

    def _matrix(self, X: Any) -> np.ndarray:
        rows = floats("X", X)
        if rows.ndim != 2:
            raise SchemaError(f"X: expected shape (n, p), got {rows.shape}")
        if self._features is None:
            self._declare([f"x{j}" for j in range(rows.shape[1])])
        if rows.shape[1] != len(self._names):
            raise SchemaError(f"X: expected {len(self._names)} columns, got {rows.shape[1]}")
        return rows

    def _compare(self, x: Mapping[Any, Any]) -> None:
        """Warn if other private estimators learn the same record objects just before, as in River's ensembles.

        Compared are the first records of `learn_one`, by their addresses, because no record and no value is kept. What
        a pipeline makes of a record is gone after the call, and the next one may have its address. So a record counts
        only if its address differs from that of the estimator's record before, and if it has more holders than this
        method, its caller, and a pipeline with its call: then it is there after the call. It takes several to warn.
        Not always recognised: ensembles behind a transformer or of pipelines. Never: equal records in several objects,
        and a record that the same estimator learns again. That would need the values.
        """
        self._looks -= 1
        record, estimator = getattr(_last, "ids", (0, 0))
        before, self._record = self._record, id(x)
        _last.ids = (id(x), id(self)) if self._looks > 0 else (0, 0)
        if record == id(x) != before and estimator != id(self) and sys.getrefcount(x) > _TRANSIENT:
            self._meetings += 1
            if self._meetings == _MEETINGS:
                self._looks = 0
                warnings.warn(
                    "several private estimators learn the same records: each counts its own spends only, and together "
                    "they spend more. streamdp.account(model).statement() says what. For several classes, one "
                    "LDPASGDClassifier(classes=[...]) spends once",
                    PrivacyWarning,
                    stacklevel=3,
                )

    # -- learning ----------------------------------------------------------------------------------------------

    def learn_one(
        self,
        x: Mapping[Any, Any],
        y: Any,
        *,
        budget: Budget | str | None = None,
        subject: Subject | None = None,
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
            noise, the second record of a subject within a batch is refused and counted.

        Raises `SchemaError` for a bad record, and for one without a subject if there is a ledger, and `BudgetError` for
        a budget that the mechanism cannot serve (see `guarantees.SERVICEABLE`), all before anything is learned or
        spent. A record over its subject's cap is counted in `n_refused` and is not learned.
        """
        if self._looks > 0:
            self._compare(x)
        with self._rng.lock:
            plain = budget is None and subject is None
            if not plain or self._quick is None or not self._quick.learn(x, y, self._rng):
                self._learn_record(x, y, budget, subject)
                if plain and self._quick is None and self._counted is self.record_budget:
                    self._quick = self._quickly()

    def _learn_record(self, x: Mapping[Any, Any], y: Any, budget: Budget | str | None, subject: Subject | None) -> None:
        """As `learn_one`, for any record; the caller holds the lock."""
        self._need_subjects((subject,))
        target = self._encode_target(y)
        record = self._features or self._adopt(check_record(x))
        try:
            record.pack(x, target)
            spend = self.record_budget
            if budget is not None:
                spend = parse_budget(budget)
                self._check(spend)
            if self.ledger is not None and not self.ledger.admit(subject, spend):
                self.n_refused += 1
                return
            if spend is not self._counted:
                self._count(spend)
            self._meet(record.row, record.target, None if budget is None else spend, None)
        finally:
            try:
                record.wipe()
            except BaseException:  # such as Ctrl-C at this very place
                record.wipe()
                raise

    def _quickly(self) -> RecordLearner | None:
        """What learns plain records from now on, which spend `record_budget`, as `_learn_record` does; None: nothing.

        It is in use until `_quick` is None again: at the latest when a spend is counted that is not this budget.
        """
        return None

    def learn_many(self, X: pd.DataFrame | pl.DataFrame | np.ndarray, y: Any) -> None:
        """Learn the rows of a frame in order: the same result as `learn_one` in a loop, with the same noise.

        Parameters
        ----------
        X
            One record a row, features by column, as `learn_one` takes them: a DataFrame of pandas or polars, a table
            of Arrow, or an array whose columns are the declared features in their order.
        y
            The targets of the rows.

        Raises `SchemaError` for bad records, and if there is a ledger, because the rows have no subjects; both before
        anything is learned or spent.
        """
        self._need_subjects(None)
        X, y = as_frame(X), as_frame(y)
        with self._rng.lock:
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
        """Learn n records in order at compiled speed.

        Parameters
        ----------
        X
            (n, p) floats, columns in the order of the declared features.
        y
            (n,) floats; for a classifier the index of each class in `classes`.
        budgets
            (n,) amounts of the estimator's kind of budget (epsilon or mu) within `guarantees.SERVICEABLE`, NaN for the
            default; None: the default for all.
        subjects
            n subjects for the ledger, or None without one.

        Returns the (n,) mask of the records that were learned if any was refused, else None.
        Raises `SchemaError` for wrong shapes, values that are not finite and, if there is a ledger, records without a
        subject, before anything is learned or spent.
        """
        with self._rng.lock:
            X = self._matrix(X)
            y = floats("y (for a classifier, the index of each class)", y)
            subjects = None if subjects is None else subject_list(subjects, len(X))
            self._need_subjects(subjects)
            if budgets is not None:
                budgets = floats("budgets", budgets).copy()
                if budgets.shape != y.shape:
                    raise SchemaError(f"budgets: expected shape ({len(X)},), got {budgets.shape}")
                budgets[np.isnan(budgets)] = amount(self._budget if self.per_record_budgets else self.record_budget)
                least, largest = SERVICEABLE
                if not np.all((budgets >= least) & (budgets <= largest)):
                    expected = f"numbers from {least:.3g} to {largest:.3g}, or NaN for the default"
                    raise SchemaError(f"budgets: expected {expected}")
            return self._learn_batch(X, y, budgets, subjects)

    def _need_subjects(self, subjects: Iterable[Subject | None] | None) -> None:
        """Raise `SchemaError` if there is a ledger and a record without a subject, which no cap would limit."""
        if self.ledger is not None and (subjects is None or any(subject is None for subject in subjects)):
            raise SchemaError(
                f"subject: the ledger's cap {self.ledger.cap} needs the subject of each record: pass `subject` to "
                "learn_one or `subjects` to learn_arrays, also through each pipeline and wrapper"
            )

    def _admit_report(self, subject: Subject | None, budget: Budget, private: bool) -> bool:
        """Ask the ledger for a report and count its budget; False if it is refused, which is counted, too."""
        if self.ledger is not None and not self.ledger.admit(subject, budget):
            self.n_refused += 1
            return False
        self._count(budget)
        self._tainted |= not private
        return True

    def _learn_batch(
        self,
        X: np.ndarray,
        y: np.ndarray,
        amounts: np.ndarray | None,
        subjects: Sequence[Subject | None] | None,
    ) -> np.ndarray | None:
        """Check, admit, count and learn rows; return the mask (n,) of those that were learned, or None for all."""
        self._check_rows(X, y)
        admitted = None
        if self.ledger is not None and subjects is not None:
            mask = self.ledger.admit_many(subjects, self._default_spend(amounts), amounts)
            refused = len(mask) - int(np.count_nonzero(mask))
            if refused:
                self.n_refused += refused
                admitted = mask
                X, y = X[mask], y[mask]
                amounts = None if amounts is None else amounts[mask]
        if len(X):
            spend = self._default_spend(amounts)
            self._count(spend if amounts is None else with_amount(spend, float(amounts.max())))
            self._meet(X, y, None, amounts)
        return admitted

    def _check_rows(self, X: np.ndarray, y: np.ndarray) -> None:
        """Raise `SchemaError` unless these are n clean records."""
        if y.shape != (len(X),):
            raise SchemaError(f"y: expected shape ({len(X)},), got {y.shape}")
        if not (np.isfinite(X).all() and np.isfinite(y).all()):
            raise SchemaError("X, y: expected finite numbers, got NaN or an infinity")
        self._check_targets(y)

    def _count(self, largest: Budget) -> None:
        """Count a spend, before the records that it is spent on are learned."""
        self._charges = self.ledger is not None
        if not (self._charges or self._history.uncapped):
            self._history = self._history.joined(CapHistory({}, uncapped=True))
        if largest is not self._counted:  # most records bring no budget of their own
            self._set_spent((*self._spent, largest))
            self._counted = largest

    def _set_spent(self, budgets: Iterable[Budget]) -> None:
        self._quick = None
        self._spent = widest(budgets)
        self._counted = None

    def _default_spend(self, amounts: np.ndarray | None) -> Budget:
        """What a record spends by default, or the kind of what records with budgets of their own spend."""
        return self.record_budget if amounts is None else self._budget

    @property
    def record_budget(self) -> Budget:
        """All that a record without a budget of its own spends."""
        return self._budget

    def _check(self, budget: Budget) -> None:
        """Raise `BudgetError` if the mechanism cannot serve this budget."""

    def _meet(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        """Do all that is done with clean rows whose spends are counted: see `_learn_rows`."""
        self._learn_rows(X, y, budget, amounts)

    def _learn_rows(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        """Learn clean rows. `budget` is one for all (None: the default), or `amounts` has one number for each row."""
        raise NotImplementedError

    def _encode_target(self, y: Any) -> float:
        raise NotImplementedError

    def _encode_targets(self, y: Any) -> np.ndarray:
        if not isinstance(y, Iterable):
            raise SchemaError(f"y: expected the targets of the rows, got {type(y).__name__}")
        return np.array([self._encode_target(v) for v in y], dtype=float)

    def _check_targets(self, y: np.ndarray) -> None:
        """Raise `SchemaError` for encoded targets out of range."""

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def private(self) -> bool:
        """False with a seed, because its noise can be subtracted, and after a state was loaded that is not private.

        It follows from the generator that is in use, not from the parameters, which may be changed.
        """
        return self._rng.private and not self._tainted

    @property
    def guarantee(self) -> Guarantee:
        """What holds for each single record learned so far, or for each unit that `neighbours` names."""
        return Guarantee(self._spent, self.neighbours, self.trust, self.private)

    @property
    def cap_history(self) -> CapHistory:
        """The caps under which the records learned so far were charged."""
        charges = self._charges and self.ledger is not None
        return self._history.joined(self.ledger.history) if charges and self.ledger is not None else self._history

    @property
    def _pending(self) -> int:
        """Records in memory that must not leave it yet."""
        return 0

    @property
    def at_boundary(self) -> bool:
        """Whether the state may leave memory now: no raw record and no unreleased contribution is in memory."""
        return self._pending == 0

    @property
    def to_boundary(self) -> int:
        """How many records to learn until the next boundary, at most; 0 at a boundary."""
        return 0

    def boundary_within(self, records: int) -> int:
        """Return how many of the next records to learn so as to end at a boundary.

        Parameters
        ----------
        records
            How many records there are, up to 10^18. If no boundary is among them, this number is returned.

        Raises `ConfigError` for anything else.
        """
        check_whole("records", records, 0, MOST_RECORDS)
        return self._boundary_within(records)

    def _boundary_within(self, records: int) -> int:
        return records

    def close_batch(self) -> None:
        """Come to a boundary now. Without batches there is nothing to do."""

    def _caveats(self, capped: bool) -> list[str]:
        return []

    def _about_validation(self) -> list[str]:
        """What was spent on answers about the model's error; notes for the statement."""
        return []

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
        alone = "this model alone, and each record as if it was given once"
        history = self.cap_history
        bounds = [] if history.uncapped else history.bounds() or ([] if cap is None else [cap])
        spends = f"the spends of a person's {self._unit.several} add up (epsilons add, deltas add, mu^2 add)"
        people = history.people(cap, " over all jobs with a cap in its database" if of_database else "", spends)
        if bounds and of_database:
            alone = (
                f"every job with a cap in its database, and no other, for a person's total, and for all else {alone}"
            )
        caveats = []
        if not self._rng.private:
            caveats.append("the noise comes from a seed, for tests; anyone who knows the seed can subtract the noise")
        if self.features is None:
            caveats.append("no features were declared; the first record's names were taken as public")
        if any(isinstance(b, ApproxDP) for b in self._spent):
            caveats.append("delta is the mass of outcomes for which nothing is promised; keep it well below 1/n")
        if bounds and of_database and self.ledger is None:
            caveats.append(
                "the caps are those of the commit that is read here: if the cap of the database was raised since, "
                "other jobs may have charged more, which `streamdp ledger status` tells"
            )
        caveats += dict.fromkeys(promise for bound in bounds for promise in promises(bound, self._unit.several))
        if bounds or self.needs_subject:
            caveats.append(SPELLING)
        caveats += [*self._caveats(bool(bounds)), *self._about_validation()]
        if (few := too_few(self)) is not None:
            caveats.append(f"about the use of the model, not about privacy: {few}")
        caveats.append(
            f"this statement covers {alone}; it does not cover further models (streamdp.account), further passes, and "
            "steps of a pipeline that learn (streamdp.preprocessing.check_pipeline)"
        )
        return statement(
            self.guarantee,
            learned=self.n_seen,
            refused=self.n_refused,
            per_subject=people,
            caveats=tuple(caveats),
            unit=self._unit,
        )
