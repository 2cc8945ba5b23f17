"""Which rows of the ledger count a record: one for its subject, or those of its period and of the total."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamdp.data.subjects import Dated, Subject
from streamdp.errors import SchemaError
from streamdp.ledger.periods import Cap, RenewingCap, budgets_of, for_all_time
from streamdp.ledger.subject_key import hash_subjects

Hashes = tuple[np.ndarray, np.ndarray]
"""What `hash_subjects` returns."""


def _times(subjects: Sequence[Subject | None], moment: float) -> np.ndarray:
    return np.array([one.time if isinstance(one, Dated) else moment for one in subjects], dtype=np.float64)


def timely(cap: Cap, subjects: Sequence[Subject | None], moment: float) -> np.ndarray:
    """Return which records have a time within the limits of the cap, or need none, (n,) bool.

    The present, and the time of a record without one, is `moment`, in seconds since 1970 (UTC).
    """
    if not isinstance(cap, RenewingCap):
        return np.ones(len(subjects), dtype=np.bool_)
    return cap.timely(_times(subjects, moment), moment)


def of_records(cap: Cap, subjects: Sequence[Subject | None], moment: float, key: bytes) -> Hashes:
    """Return the hashes of the rows of n records: for each filter of the cap n, one filter after the other.

    Those of untimely records have no meaning. `moment` is as for `timely`, and `key` is the subject key. Raises the
    errors of `hash_subjects`.
    """
    if not isinstance(cap, RenewingCap):
        return hash_subjects(subjects, key)
    periods = cap.codes(np.where(timely(cap, subjects, moment), _times(subjects, moment), 0.0))
    found = [hash_subjects(subjects, key, codes) for codes in (periods, np.zeros_like(periods))]
    keys, present = zip(*found[: len(budgets_of(cap))], strict=True)
    return np.concatenate(keys), np.concatenate(present)


def of_people(cap: Cap, subjects: Sequence[Subject], key: bytes, time: float | None = None) -> Hashes:
    """Return the hashes of the rows of n subjects: over all time, or in the period of a time, in seconds since 1970.

    Raises `BudgetError` without a time, for a cap that renews and has no total; `SchemaError` for None among the
    subjects, and the errors of `hash_subjects`, under the subject key.
    """
    if any(subject is None for subject in subjects):
        raise SchemaError("None has no spends and no cap; a subject must be str, bytes or a whole number")
    if not isinstance(cap, RenewingCap):
        return hash_subjects(subjects, key)
    if time is None:
        for_all_time(cap)  # raises if there is no total
        return hash_subjects(subjects, key, np.zeros(len(subjects), dtype=np.int64))
    return hash_subjects(subjects, key, cap.codes(np.full(len(subjects), time)))
