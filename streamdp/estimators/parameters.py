"""The parameters of the public estimators: each is declared once, and described once in their documentation.

`Parameters` has those of all estimators of targets, a family of estimators adds its own, and a public class the
defaults that differ; the constructor is made of them. `documented` adds the guarantee and the parameters to its docs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from inspect import cleandoc, signature
from textwrap import indent
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from streamdp.ledger.ledger import Ledger
    from streamdp.optim.domains import Domain
    from streamdp.optim.losses import Loss, LossName
    from streamdp.privacy.guarantees import Budget
    from streamdp.reading.change import OnChange

Estimator = TypeVar("Estimator", bound=type)
Plan = TypeVar("Plan", bound="DataclassInstance")

REGRESSION_LOSSES = '"huber", "squared" (the mean), "poisson" (the mean, whose logarithm is linear) or "quantile"'
CLASSIFICATION_LOSSES = '"logistic", "softmax" or "hinge"'

SHARED: Mapping[str, str] = {
    "domain": """
        The set that theta is projected to: an `L2Ball` or a bounded `Box`; L2Ball(5) if None. The steps are planned
        from its size.""",
    "features": """
        The declared public schema: the names of the features. If None, the names of the first record are taken,
        sorted.""",
    "intercept": "Whether a constant 1 is added to x.",
    "ledger": "A `Ledger` that caps what each subject spends; None: no cap.",
    "seed": 'For tests only: reproducible noise, and a statement that says "not private".',
    "items_per_user": "m, from 1 to 2^20: the most records of one subject in a report or window.",
    "spread": """
        The root mean square distance of a user's average gradient from the mean of all users', if it is known from
        public data; at least 1e-60. If None, bound / sqrt(m), which is right if a user's records are as different
        as those of two users. It matters for accuracy only.""",
    "horizon": """
        The expected length of the stream, in {unit}s, from 1 to 10^18; batches and steps are planned for it. If None,
        the stream is learned in epochs: the first has 1024 {unit}s, and each later one twice as many. In both cases
        learning may go on beyond it.""",
    "batch_size": """
        {Unit}s of a batch, from 1 to 10^18; a shorter epoch or phase is one batch. If None, the size with the least
        error bound (see `ac_sa`).""",
    "smoothness": """
        The smoothness constant of the loss (positive), if a smaller one is known than the loss has for columns of a
        scale of 1.""",
    "strong_convexity": """
        lambda >= 0 of the expected loss, if it is known: then learning goes in phases, each from the output of the last
        one. At most 4 bound / width of the domain.""",
    "classes": "The public labels, at least two; (False, True) if None. Any other label raises `SchemaError`.",
    "change": """
        "follow": a change of the stream is looked for in what was released, which spends nothing, and what was learned
        before it is dropped (docs/proofs/change.md). "ignore": the average is over all of the past. None: "follow", or
        "ignore" for planned methods and with clock="records", which cannot follow.""",
    "validation": """
        How records say how good the model is (see `quality`): {"share": 0.1} of them in place of being learned, in
        batches all with this share of their budget, or {"budget": "eps=0.5"}, beside it, not for windows. Batches and
        windows release one noisy sum of answers each; otherwise each record answers by itself. Regressors without
        declared bounds of the target need "bound", the largest distance of target and prediction that counts. None: no
        record is asked.""",
}
"""The texts of the parameters that estimators share."""

METHOD = """
        "newton": averaged Newton steps from gradients and curvature, in batches that grow; no step size, horizon or
        domain is needed (see `optim.newton`). It takes "huber", "squared", "poisson", "logistic" and "softmax", without
        `clip`: only there is the sensitivity of the curvature proved (see `optim.curvature`). "ac-sa": the accelerated
        steps of the paper, planned from `horizon`, `domain`, `smoothness` and `strong_convexity`.{} "auto": "newton" if
        the loss has a curvature, else "ac-sa"."""
"""The text of the parameter `method`; {} is for further methods."""

BATCHED: Mapping[str, str] = {
    "target": """
        The public bounds (low, high) of the target. With "newton", an intercept and no domain, theta begins in their
        middle, with half their width as Huber's scale, and the first batches look for both. None: it begins at 0, with
        the scale 1, which takes many more records for a target far from it.""",
    "method": METHOD.format(""),
    "domain": """
        The set that theta is projected to: an `L2Ball` or a bounded `Box`. If None, all of R^d with "newton", and
        L2Ball(5) with "ac-sa", whose steps are planned from its size.""",
    "batch_size": SHARED["batch_size"] + """ With "newton" all batches have this size, and if None they grow.""",
    **{
        name: SHARED[name] + """ Not with "newton": a `ConfigError`."""
        for name in ("horizon", "smoothness", "strong_convexity")
    },
}
"""As `SHARED`, for the estimators whose `method` may be "newton"."""


@dataclass(eq=False, repr=False)
class Parameters:
    """The parameters that all estimators of targets have; `SHARED` describes them."""

    loss: LossName | Loss = "huber"
    budget: Budget | str | None = None
    _: KW_ONLY
    domain: Domain | None = None
    features: Sequence[str] | Mapping[str, object] | None = None
    intercept: bool = True
    ledger: Ledger | None = None
    seed: int | None = None
    change: OnChange | None = None


def given(kind: type[Plan], model: object) -> Plan:
    """A plan, a dataclass of this `kind`: its fields are parameters of an estimator, `model`."""
    return kind(**{field.name: getattr(model, field.name) for field in fields(kind)})


def documented(
    guarantee: str, texts: Mapping[str, str] | None = None, *, unit: str = "record", **more: str
) -> Callable[[Estimator], Estimator]:
    """Return a class decorator that completes a docstring, which has a summary and then its other sections.

    `guarantee`: what is guaranteed, with its source; it comes after the summary. `texts`, `more`: descriptions by
    parameter, before those of `SHARED`; `more` before `texts`. `unit`: what a batch consists of.

    The decorator raises `KeyError` if a parameter of the constructor has no description.
    """

    def complete(estimator: Estimator) -> Estimator:
        known = {**SHARED, **(texts or {}), **more}
        summary, _, rest = cleandoc(estimator.__doc__ or "").partition("\n\n")
        lines = ["Parameters", "----------"]
        for name in signature(estimator).parameters:
            text = known[name].replace("{unit}", unit).replace("{Unit}", unit.capitalize())
            lines += [name, indent(cleandoc(text), "    ")]
        estimator.__doc__ = "\n\n".join([summary, cleandoc(guarantee), "\n".join(lines), rest])
        return estimator

    return complete
