"""The checks of a job before it learns: they read its records, and spend and write nothing."""

import os
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing

import numpy as np

from streamdp.config.file import STANDARD_INPUT, FileSourceConfig
from streamdp.config.job import JobConfig
from streamdp.config.kafka import KafkaSourceConfig
from streamdp.config.prospect import Prospect, prospect
from streamdp.config.settings import ReadConfig
from streamdp.config.trust import loss_of_mean
from streamdp.data.inspection import OFTEN, Inspection
from streamdp.errors import ConfigError, NothingLearnedError, SourceError, TooManyBadRecordsError
from streamdp.estimators.traps import FAR
from streamdp.learners.batches import Batches
from streamdp.learners.local_reports import LocalReports
from streamdp.runtime.bad_records import by_reason, fixes, in_words, too_many

AGAIN = 2
"""With so many records a person, `come_again` says what becomes of them."""
_OWN = "each worker learns a model of its own records, and their average is shown"
_MANY = 16
"""A topic whose records are enough for so many workers needs no word about their number."""
BLOCK = 65_536
"""How many records `first_block` looks at, and how many messages of a topic `inspect`."""


def readable(job: JobConfig) -> bool:
    """Whether `inspect` can read the source of a job before the job does."""
    source = job.source
    return isinstance(source, ReadConfig | KafkaSourceConfig) and source.name != STANDARD_INPUT


def inspect(job: JobConfig, most: int | None = None) -> Inspection:
    """Read the files, the Redis stream or some messages of a job, and count what does not fit.

    About `most` records are read; None: all, or about `BLOCK` messages of a topic. Raises `ConfigError` for another
    source, `SourceError` if it cannot be read, and `SchemaError` if the header of a file does not fit.
    """
    source, inspection = job.source, Inspection(job.build_schema())
    if isinstance(source, KafkaSourceConfig):
        inspection.of, batches = source.sample(job.job, inspection, job.key_is_subject, BLOCK)
        for batch in batches:
            inspection.note(batch)
        return inspection
    if not isinstance(source, ReadConfig) or not readable(job):
        raise ConfigError(
            "check reads files, Kafka topics and Redis streams: the records of this job's source can be read only once,"
            " or do not exist before it runs"
        )
    whole = source.model_copy(update={"max_bad_share": None, "follow": False, "keep_payload": False})
    with closing(whole.build(inspection)) as records:
        while not records.finished and (most is None or inspection.rows < most):
            inspection.note(records.poll(BLOCK, 1.0))
        if source.type == "csv" and records.position.get("row") == 0 and not source.follow:
            raise SourceError(f"{source.name} has no complete line: expected a header line with the names of columns")
        inspection.unended = records.unended
    return inspection


def hopeless(inspection: Inspection) -> str | None:
    """Say why no record can be learned. None if some can."""
    if inspection.fit:
        return None
    if not inspection.rows:
        return "there are no records"
    return (
        f"none of the first {inspection.rows:,} records fits the schema: {by_reason(inspection.reasons)}; "
        f"{'; '.join([*fixes(inspection.reasons), 'fix the schema or the data'])}; `streamdp check` shows all counts"
    )


def stops(job: JobConfig, inspection: Inspection) -> str | None:
    """Say why a run stops: no record can be learned, or too many do not fit the schema. None if it does not."""
    source = job.source
    assert isinstance(source, ReadConfig | KafkaSourceConfig)
    return hopeless(inspection) or too_many(source.name, inspection.rows, inspection.reasons, source.max_bad_share)


def admitted(job: JobConfig, inspection: Inspection) -> int | None:
    """How many records a cap admits at most, by what one of a person spends after another; None: that is not known."""
    cap, learns = job.cap_budget, job.model.kind.learns
    if cap is None or job.schema_.time is not None or not issubclass(learns, Batches | LocalReports):
        return None
    from streamdp.ledger.caps import fits

    spend, most = job.build_estimator().record_budget, max(inspection.people.values(), default=1)
    each = bisect_left(range(1, most + 1), True, key=lambda records: not fits(cap, spend, records))
    return inspection.expected_of(each)


def come_again(job: JobConfig, inspection: Inspection) -> list[str]:
    """Say that people come again whose further records would be left out of batches; at most one sentence."""
    people, records = len(inspection.people), inspection.named
    if job.cap is None or records < AGAIN * people or not people:
        return []
    batch = job.build_estimator().learner.open
    if batch is None or batch.most != 1:
        return []
    together = "; trust: window protects all records of a person together and learns up to model.items_per_user of them"
    return [
        f"the first {records:,} records are of {people:,} people: in a batch, one record of a person is learned, and"
        f" further ones are left out, because they share its noise{'' if job.statistics else together}"
    ]


def between(job: JobConfig, inspection: Inspection) -> list[str]:
    """Say that Huber's loss, the default, learns a number between mean and median of the target, if it does."""
    if not job.has_model or job.model.loss is not None or not (found := loss_of_mean(inspection.targets, job.trust)):
        return []
    of_counts = "loss: poisson the mean of counts, " if found[0] == "poisson" else ""
    return [
        f"{job.schema_.target.column!r}: {found[1]}, and Huber's loss, the default, learns a number between mean and "
        f"median: loss: squared learns the mean, {of_counts}and loss: quantile the median"
    ]


def unbounded(job: JobConfig, inspection: Inspection) -> list[str]:
    """Say that a target without bounds is far from the scale of about 1 that is expected then; at most one sentence."""
    if not job.has_model or job.trust == "window" or job.schema_.target.bounds is not None:
        return []
    if not np.abs(inspection.targets).max(initial=0.0) > FAR:
        return []
    return [
        f"{job.schema_.target.column!r} has values beyond {FAR:g} and no bounds: trust: {job.trust} expects a scale of "
        "about 1 then, and the model may be worse than a constant; declare the bounds of the target"
    ]


def few_workers(job: JobConfig, plan: Prospect | None) -> list[str]:
    """Say how many workers the records of a topic are enough for, by the plan of all; at most one sentence."""
    if plan is None or not isinstance(job.source, KafkaSourceConfig):
        return []
    if (most := max(1, plan.records // plan.likely_from)) >= _MANY:
        return []
    enough = f"{most} worker{'s' * (most > 1)}, for all partitions"
    return [f"{_OWN}: {plan.records:,} {plan.counted} are enough for {enough}"]


def apart(job: JobConfig, models: int, records: int) -> list[str]:
    """Say that `models` of several workers learned too few of all `records` each; at most one sentence."""
    plan = prospect(job, records // models) if models > 1 else None
    if plan is None or plan.beats_constant == "likely":
        return []
    return [
        f"{_OWN}: {models} have learned about {records // models:,} records each, and a model is likely to beat a "
        f"constant from about {plan.likely_from:,} on; start fewer workers"
    ]


def unended(names: Sequence[str]) -> list[str]:
    """Say that the last records of the files with these `names` were not read; at most one sentence."""
    if not names:
        return []
    more = f" and {len(names) - 3} more files" if len(names) > 3 else ""
    return [
        f"the last record of {', '.join(names[:3])}{more} has no end (its newline or a closing quote is missing) and"
        " was not read, because its rest may still come; it is read when it has its end, unless a later file was read"
        " before"
    ]


def first_block(job: JobConfig) -> list[str]:
    """Check the first records of a job before it runs, unless its source cannot be read twice; return warnings.

    They show only which records do not fit and why, which the guarantee calls public.

    Raises `NothingLearnedError` if no record fits, `TooManyBadRecordsError` if more than `source.max_bad_share` do not,
    and the errors of `inspect`.
    """
    source = job.source
    if not isinstance(source, FileSourceConfig) or not all(os.path.isfile(p) or os.path.isdir(p) for p in source.paths):
        return []
    inspection = inspect(job, BLOCK)
    if not inspection.rows:
        return []  # the end of the run says so, of any source
    if (problem := hopeless(inspection)) is not None:
        raise NothingLearnedError(f"{source.name}: {problem}")
    if (problem := stops(job, inspection)) is not None:
        raise TooManyBadRecordsError(problem)
    return come_again(job, inspection) + [
        f"{100 * count / inspection.rows:.0f} % of the first {inspection.rows:,} records do not fit the schema:"
        f" {in_words(*reason)}; see `streamdp check`"
        for reason, count in inspection.reasons.items()
        if count >= OFTEN * inspection.rows
    ]
