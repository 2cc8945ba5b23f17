"""What the service shows of a committed model, as plain values for JSON."""

import orjson
from fastapi import Response

from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP
from streamdp.privacy.statement import with_notes
from streamdp.service.jobs import Job
from streamdp.serving.doubts import doubts
from streamdp.serving.publish import shown_weights
from streamdp.serving.snapshots import Model
from streamdp.store.snapshot import Counts


def answer(value: object) -> Response:
    """A JSON answer with a plain `value` that no cache keeps."""
    return Response(orjson.dumps(value), media_type="application/json", headers={"Cache-Control": "no-store"})


def shown(counts: Counts) -> dict[str, int]:
    """The `counts` of records, as all calls and events name them."""
    names = {"learned": counts.learned, "refused": counts.refused, "left_out": counts.left_out}
    return names | {"dead": counts.dead_letters}


def summary(job: Job) -> dict[str, object]:
    """A line of the list of models."""
    snapshot = job.snapshot
    return {
        "job": job.name,
        "estimator": job.config.model.estimator,
        "version": snapshot.seq,
        **shown(snapshot.counts),
        "waiting": job.uncommitted,
        "trouble": job.trouble,
        "committed_at": snapshot.committed_at if snapshot.seq else None,
    }


def description(job: Job) -> dict[str, object]:
    """All about a model but its weights."""
    model = job.model
    achieved = model.estimator.guarantee
    guarantee = _amounts(achieved.budgets) | {
        "neighbours": achieved.neighbours,
        "trust": achieved.trust,
        "private": achieved.private,
    }
    schema = model.definition.schema_.model_dump(mode="json", exclude_none=True)
    doubtful = [*model.snapshot.doubts, *doubts(model.estimator, model.snapshot.counts, model.quality)]
    found = {"schema": schema, "guarantee": guarantee, "statement": statement(job), "doubts": doubtful}
    found["unpublished"] = job.unpublished
    return summary(job) | found | shown_of_stream(job)


def shown_of_stream(job: Job) -> dict[str, object]:
    """What private answers say about a model, under `validation`, and what is known about a `change` of the stream.

    Empty without both. After a change that the learner noticed, `last_change` are the records at that time, if known.
    """
    model = job.model
    quality, said = model.quality, model.change
    found: dict[str, object] = {} if quality is None else {"validation": quality.document()}
    return found if said is None else found | {"change": said, "last_change": model.estimator.last_change}


def statement(job: Job) -> str:
    """The privacy statement, with what waits in the memory of the service."""
    return with_notes(job.model.statement(), {"In the memory of the service": job.notes()})


def _amounts(budgets: tuple[Budget, ...]) -> dict[str, float]:
    """The largest budget of a record; nothing before the first record."""
    found: dict[str, float] = {}
    for budget in budgets:
        if isinstance(budget, GaussianDP):
            found["mu"] = budget.mu
            continue
        found["epsilon"] = max(found.get("epsilon", 0.0), budget.epsilon)
        if isinstance(budget, ApproxDP):
            found["delta"] = budget.delta
    return found


def weight_rows(model: Model) -> list[dict[str, object]]:
    """The weights of a model in original units."""
    schema = model.definition.schema_
    target = schema.target
    classes = target.classes
    bases = model.definition.schema_.baselines()
    units = {name: f" ({given['unit']})" for name, given in schema.words()["features"].items() if "unit" in given}
    rows = []
    for weight in shown_weights(model):
        plain = target.unit or target.column
        gained = "score" if classes is not None else plain if model.estimator.link is None else f"log of {plain}"
        if weight.name == "(error spread)" and target.transform is None:
            unit = plain
        elif weight.name.startswith("("):
            unit = gained
        elif weight.name in bases:
            unit = f"{gained}, beside {bases[weight.name]}"
        else:
            unit = f"{gained} per unit of {weight.name}{units.get(weight.name, '')}"
        row: dict[str, object] = {"name": weight.name, "value": weight.value, "low": weight.low, "high": weight.high}
        row |= {"settles_at": weight.settles_at, "unit": unit}
        rows.append(row | ({} if weight.label is None else {"class": weight.label}))
    return rows
