"""The learner of LDP-SGD and LDP-ASGD: noisy steps, reports and the state. The argument is in `ldp.estimators`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from streamdp.data.floats import floats
from streamdp.errors import ConfigError, SchemaError, check_choice
from streamdp.estimators.features import Features
from streamdp.estimators.few_records import rarity
from streamdp.estimators.ldp.randomizer import Answer, Question, Randomizer, Report
from streamdp.estimators.validated import ValidatedModel
from streamdp.optim import frame as k
from streamdp.optim import location_scale, loops, odds, pair_bits, questions
from streamdp.optim.arrays import FIRST_SCALE, Arrays, average_in_units, begin, merge, read
from streamdp.optim.inference import SEGMENTS
from streamdp.optim.local_learning import LocalStep, absorb, learn
from streamdp.optim.losses import Loss, first_theta, weighted_by_norm, without_shift
from streamdp.optim.states import finite_array
from streamdp.optim.steps import EACH, Steps, expected_distance
from streamdp.privacy import samplers
from streamdp.privacy.entropy import Entropy, SeededEntropy, entropy
from streamdp.privacy.guarantees import Budget, amount
from streamdp.privacy.mechanisms import Mechanism, NoNoise, PrivUnit, calibrated, mechanism_for, record_rows
from streamdp.privacy.mechanisms.privunit import arithmetic_delta
from streamdp.privacy.statement import arithmetic_note

if TYPE_CHECKING:
    from streamdp.data.records import Subject

# Within these limits states stay far inside the doubles for 1e18 records; reports are at most 1e15 bounds long.
_LARGEST_REPORT = 1e15
_LARGEST_THETA = 1e100
_LARGEST_SUM = 1e120
_BLOCK = 8192  # records that are calibrated at once: their memory is used again, and new memory takes long to get
_SCALINGS = ("private", "declared", "none")


class LDPLearner(ValidatedModel):
    """The learner's half, and both halves in one process. `_arrays` holds what was learned (see `frame`)."""

    trust = (
        "nobody, if the randomizer runs on the person's side; otherwise the process that calls learn_one, "
        "which sees each record and forgets it"
    )
    _averaged: ClassVar[bool] = False
    _stays = True
    scales_columns = True
    _arrays: Arrays

    mechanism: str | type[Mechanism]
    eta: float
    alpha: float
    clock: str
    scaling: str | None
    _weighed_by: ClassVar[str] = "information"
    _rng: Entropy | SeededEntropy
    _kind: str | type[Mechanism]  # the mechanism in use; the parameter may be changed

    def _set_up(self) -> None:
        super()._set_up()
        self._steps = Steps(self.eta, self.alpha, self.clock)
        self._rng = entropy(self.seed)
        self._kind = self.mechanism
        self._mechanism_of(self._budget)  # a budget that cannot be served is an error now, not at the first record
        if self.scaling is not None:
            check_choice("scaling", self.scaling, _SCALINGS, " or None")

    def _resolve_loss(self) -> Loss:
        return weighted_by_norm(super()._resolve_loss())

    def _scaling_of(self, features: Features) -> str:
        """How columns are centred and scaled; by default privately where that is possible."""
        bounds = bool(features.numeric.any()) or self._target_bounds() is not None
        reasons = {
            "declared bounds, in `features` or `target`": bounds,
            "intercept=True": self.intercept,
            "no domain, because the units of theta change": self.domain is None,
        }
        missing = [reason for reason, held in reasons.items() if not held]
        if (self.scaling == "private" and missing) or (self.scaling == "declared" and not bounds):
            raise ConfigError(f"scaling: {self.scaling} scaling needs {missing[0]}")
        return self.scaling or ("none" if missing else "private")

    def _place_of_target(self) -> tuple[float, float, float]:
        if self._target_bounds() is None:
            return super()._place_of_target()
        target, asked = self._arrays.frame[-1], self._arrays.clock[k.TARGET]
        assert self._features is not None
        if target[k.SLOT] >= 0 and asked < k.DONE:
            return 0.0, 0.0, 0.0
        at = [k.ORIGIN, k.UNIT] if self._scaling_of(self._features) == "none" else [k.CENTRE, k.SCALE]
        centre, scale = target[at].tolist()
        return centre, scale, float(target[k.UNIT])

    def _allocate(self, p: int) -> None:
        features = self._features
        assert features is not None
        spec, box = self._describe(p)
        d = box.shape[1]
        scaling, bounds = self._scaling_of(features), self._target_bounds()
        in_units = bounds is not None and scaling != "none"
        classes = self._index is not None
        self._distance = expected_distance(d, in_units, classes)
        numbers = self._steps.numbers(self._distance, self._loss.bound, d, classes)
        spec[loops.FACTOR], spec[loops.DECAY], spec[loops.OFFSET] = numbers
        spec[loops.BY_RECORDS], spec[loops.AVERAGED] = self.clock == "records", self._averaged
        frame = np.zeros((p + 1, k.FRAME))
        frame[:, [k.SCALE, k.UNIT]] = 1.0
        frame[p, k.UNIT] = np.inf
        if self.intercept:
            frame[:p, k.ORIGIN], frame[:p, k.UNIT] = features.origin, features.unit
        scaled: list[int] = []
        if scaling == "private":
            scaled = [*np.flatnonzero(features.numeric).tolist(), *([] if bounds is None else [p])]
            frame[:p, k.SCALE][features.numeric] = FIRST_SCALE
        if bounds is not None:
            low, high = bounds
            frame[p, k.ORIGIN], frame[p, k.UNIT] = (low + high) / 2, (high - low) / 2
            if scaling != "none":
                frame[p, [k.CENTRE, k.SCALE]] = frame[p, [k.ORIGIN, k.UNIT]]
        if scaling != "none":
            for j, (centre, spread) in features.typical.items():
                frame[j, [k.CENTRE, k.SCALE]] = centre if self.intercept else 0.0, spread
        state, segments = np.zeros((2, d)), SEGMENTS if self._averaged else 0
        self._arrays = begin(spec, box, state, segments, frame, scaled, self._paired(features))
        self._arrays.state[0] = first_theta(self._loss, d, in_units)
        self._arrays.state[1] = self._original(self._arrays.state[0])
        self._merged, self._predictor = False, None
        self._default = self._mechanism_of(self._budget)
        self.__dict__.pop("_default_rows", None)
        self._kernel = learn

    def _paired(self, features: Features) -> Sequence[int]:
        """The columns of which pairs are asked about; the number of columns is the constant 1."""
        return ()

    @cached_property
    def _default_rows(self) -> np.ndarray:
        """The calibration of the default budget. A model that is only read needs none."""
        return self._default.rows(self._arrays.state.shape[1])

    def _original(self, theta: np.ndarray) -> np.ndarray:
        """Theta in original units, as a new array."""
        out = np.empty(len(theta))
        k.outward(self._arrays, theta, out)
        return out

    def _mechanism_of(self, budget: Budget) -> Mechanism:
        kind: Any = mechanism_for(self._kind, budget)
        return calibrated(kind, budget, self._loss.bound, self._loss.sensitivity)

    def _check(self, budget: Budget) -> None:
        self._mechanism_of(budget)

    def _learn_rows(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        mechanism, d = self._default, self._arrays.state.shape[1]
        if amounts is not None:
            for at in range(0, len(X), _BLOCK):
                some = slice(at, at + _BLOCK)
                self._learn_by(mechanism, mechanism.rows(d, amounts[some], self._asks), X[some], y[some])
        elif budget is not None:
            mechanism = self._mechanism_of(budget)
            self._learn_by(mechanism, record_rows(mechanism, d), X, y)
        else:
            self._learn_by(mechanism, self._default_rows, X, y)

    def _learn_by(self, mechanism: Mechanism, rows: np.ndarray, X: np.ndarray, y: np.ndarray) -> None:
        """Learn by one calibration, or by one for each record."""
        rng = self._rng
        while (done := self._kernel(self._arrays, mechanism.code, self._seen, X, y, rows, rng.words)) < len(X):
            rng.refill_for(done)
            X, y = X[done:], y[done:]
            rows = rows if len(rows) == 1 else rows[done:]

    def _record_kernel(self, p: int) -> LocalStep:
        return LocalStep(self._arrays, self._default.code, self._seen, self._default_rows)

    # -- the two halves -----------------------------------------------------------------------------------------

    @property
    def randomizer(self) -> Randomizer:
        """The local half for the next record. `learn_one` is `absorb(randomizer(x, y))`, but for bits.

        Reports have no questions about pairs of columns and about the class.

        Raises `NotAvailableError` before the features are known.
        """
        self._need_features("randomizer")
        rng = self._rng if isinstance(self._rng, SeededEntropy) else Entropy()
        features = self.features if isinstance(self.features, Mapping) else self._names
        return Randomizer(
            self._arrays.state[0].copy(),
            self._loss,
            features,
            bool(self.intercept),
            self._budget,
            self._kind,
            self._question(),
            rng,
            max(2, self._outputs()),
        )

    def _question(self) -> Question:
        """What the next record is asked."""
        frame, summary = self._arrays.frame, self._arrays.summary
        column = questions.next_question(self._arrays)
        low, high = -np.inf, np.inf
        if column >= 0:
            low, high = summary[int(frame[column, k.SLOT]), [location_scale.LOW, location_scale.HIGH]].tolist()
        scales = frame[:, [k.CENTRE, k.SCALE]].copy()
        bounds = tuple(frame[-1, [k.ORIGIN, k.UNIT]].tolist())
        return Question(column, low, high, scales, bounds, int(self._arrays.clock[k.CHANGES]))

    def absorb(self, report: Report | Answer, *, subject: Subject | None = None) -> None:
        """Apply one report. The guarantee takes over the report's budget.

        A gradient that was made for older scales is counted and not learned. A learner cannot recognise a forged
        report: a malicious client can move theta by a step times any vector with coordinates up to 1e15 bounds, and a
        scale by any bit.

        Parameters
        ----------
        report
            A noisy gradient (d,) or a noisy bit, with its budget.
        subject
            The person, for the ledger. A report of a subject over its cap is counted in `n_refused`.

        Raises `SchemaError` if it is not a finite vector of the right length, an answer about no column that is scaled,
        or without a subject although there is a ledger, and `NotAvailableError` before the features are known.
        """
        self._need_features("absorb")
        self._need_subjects((subject,))
        if not isinstance(report, Report | Answer):
            raise SchemaError(f"report: expected what a randomizer returns, got {type(report).__name__}")
        arrays = self._arrays
        row = record_rows(self._mechanism_of(report.budget), arrays.state.shape[1])[0]
        keep = float(row[samplers.KEEP])
        if isinstance(report, Answer):
            known = isinstance(report.column, int) and 0 <= report.column < len(arrays.frame)
            if not known or arrays.frame[report.column, k.SLOT] < 0 or not report.low < report.high:
                raise SchemaError("report: expected an answer about a column that is scaled")
            with self._rng.lock:
                if not self._admit_report(subject, report.budget, report.private):
                    return
                self._seen[0] += 1
                k.take_bit(arrays, report.column, float(report.low), float(report.high), bool(report.yes), keep)
            return
        g = floats("report", report.gradient)
        if g.shape != arrays.state[0].shape or not np.all(np.abs(g) <= _LARGEST_REPORT * self._loss.bound):
            raise SchemaError(f"report: expected a finite vector of shape {arrays.state[0].shape}, got shape {g.shape}")
        with self._rng.lock:
            if not self._admit_report(subject, report.budget, report.private):
                return
            if report.changes == arrays.clock[k.CHANGES]:
                absorb(arrays, self._seen, g, float(row[samplers.INFORMATION]), keep)
            else:
                self._seen[0] += 1

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def private(self) -> bool:
        """False with a seed or without noise, and after a state or report was taken over that is not private."""
        return super().private and mechanism_for(self._kind, self._budget).code != NoNoise.code

    def _caveats(self, capped: bool) -> list[str]:
        if not self._names:
            return []
        notes = []
        others = "a gradient" if self._plan is None or self._plan.share is None else "a gradient or an answer"
        budgets = [b for b in self._spent if mechanism_for(self._kind, b).code == PrivUnit.code]
        if budgets:
            delta = arithmetic_delta(max(budgets, key=amount), self._arrays.state.shape[1])
            notes.append(arithmetic_note(delta))
        target = "class" if self._index is not None else "centre and the scale of the target"
        bits = {f"the {target}, or the centre and the scale of a column": self.n_asked, "two columns": self.n_paired}
        if any(bits.values()):
            told = ", ".join(
                f"{count:,} spent their budget on one bit about {what}" for what, count in bits.items() if count
            )
            notes.append(f"of the {self.n_seen:,} records, {told}, and the others on {others}; which ones is public")
        return notes

    @property
    def _asks(self) -> bool:
        """Whether a later record may be asked for a bit in place of a gradient."""
        return len(self._arrays.summary) > 0 or bool(self._arrays.pairs[-1, pair_bits.FIRST] >= 0)

    @property
    def n_asked(self) -> int:
        """Records that answered with one bit about the class, or about the centre and scale of target or column."""
        return 0 if self._features is None else int(self._arrays.clock[k.BITS])

    @property
    def n_paired(self) -> int:
        """Records that answered with one bit about two columns, and not with a gradient (see `pair_bits`)."""
        return 0 if self._features is None else int(self._arrays.pairs[-1, pair_bits.ANSWERS])

    @property
    def least_records(self) -> int | None:
        """About how many records in all hold the information I_0 of `steps`; None before the first one.

        With less a model knows so little that it is close to a constant.
        """
        if self._features is None or not self.n_seen or self.clock == "records":
            return None
        total, gradients = float(self._arrays.clock[k.TOTAL]), self.n_seen - self.n_asked - self.n_paired
        each = total / max(gradients, 1) if total else float(self._default_rows[0, samplers.INFORMATION])
        later = 1 - float(self._arrays.frame[-1, k.SINCE] / self._arrays.spec[loops.OFFSET])
        if self._outputs() > 1 and self.intercept:
            later = rarity(self._blocks(average_in_units(self._arrays))[:, -1])
        return self.n_asked + math.ceil(EACH * len(self._arrays.state[0]) * later / each)

    @property
    def theta(self) -> np.ndarray:
        """A copy of the estimate (d,) in original units: coefficients, intercept, scale; K blocks that add up to 0.

        Raises `NotAvailableError` before the features are known.
        """
        self._need_features("theta")
        return without_shift(self._arrays.state[1], self._outputs())

    def _point(self) -> tuple[np.ndarray, bool]:
        return self._arrays.state[1], self.intercept

    def _estimate(self) -> np.ndarray:
        theta = self.theta
        if self.intercept:
            assert self._features is not None
            self._features.to_columns(self._blocks(theta))
        return theta

    # -- state --------------------------------------------------------------------------------------------------

    def _model(self) -> dict[str, Any]:
        """See `LinearModel._model`: steps may change between states, units and weights may not."""
        units = self._arrays.frame[:, [k.ORIGIN, k.UNIT, k.SLOT]].tolist()
        weighting = self._loss.weighting or "mallows"
        return super()._model() | {"weighting": weighting, "clock": self.clock, "units": repr(units)}

    def _learned(self) -> dict[str, Any]:
        arrays = self._arrays
        return {
            "state": arrays.state.copy(),
            "segments": arrays.segments.copy(),
            "progress": arrays.clock.copy(),
            "scales": arrays.frame[:, : k.LEARNED].copy(),
            "posterior": arrays.cells.copy(),
            "tails": arrays.tails.copy(),
            "pairs": arrays.told.copy(),
            "merged": self._merged,
        }

    def _read(self, state: Mapping[str, Any]) -> None:
        arrays = self._arrays
        numbers = finite_array(state, "state", arrays.state.shape)
        segments, d = finite_array(state, "segments", arrays.segments.shape), numbers.shape[1]
        measured = segments[:, d + 1 :] > 0
        if (
            np.abs(numbers).max() > _LARGEST_THETA
            or np.abs(segments).max(initial=0.0) > _LARGEST_SUM
            or segments[:, d:].min(initial=0.0) < 0
            or np.any(measured != (measured.all(axis=1) & (segments[:, d] > 0))[:, None])
        ):
            raise ConfigError("state: numbers out of range")
        self._check_theta(numbers[0])
        arrays.state[:], arrays.segments[:] = numbers, segments
        read(arrays, state, "posterior")
        self._merged = bool(state["merged"])

    def _numbers(self) -> np.ndarray:
        return np.stack([self._original(self._arrays.state[0]), self._arrays.state[1]])

    def _start_from(self, numbers: np.ndarray) -> None:
        k.inward(self._arrays, numbers[0], self._arrays.state[0])
        self._arrays.state[1] = numbers[1]

    def _contribution(self) -> tuple[dict[str, Any], dict[str, Any], np.ndarray]:
        model, counts, numbers = super()._contribution()
        return model, counts | {"information": float(self._arrays.clock[k.TOTAL])}, numbers

    def _start_from_average(self, parts: Sequence[Self]) -> None:
        super()._start_from_average(parts)
        arrays, original = self._arrays, self._numbers()
        merge(arrays, [part._arrays for part in parts])  # noqa: SLF001 - the same class
        arrays.segments[:] = arrays.clock[[k.SEGMENT, k.WIDTH]] = 0.0
        self._start_from(original)
        odds.begin(arrays)
        self._merged = True
