"""The parameters of the public estimators: each is declared once, and described once in their documentation.

`Parameters` has those of all estimators of targets, a family of estimators adds its own, and a public class the
defaults that differ; the constructor is made of them. `documented` adds the guarantee and the parameters to its docs,
from those of its bases.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from inspect import cleandoc, signature
from typing import TYPE_CHECKING, TypeVar

from streamdp.optim.domains import Domain
from streamdp.optim.losses import Loss, LossName
from streamdp.privacy.guarantees import Budget
from streamdp.reading.change import OnChange

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from streamdp.ledger.ledger import Ledger

Estimator = TypeVar("Estimator", bound=type)
Plan = TypeVar("Plan", bound="DataclassInstance")

_NEXT = r"(?=\n\n\w+\n---|\Z)"
_GUARANTEE = re.compile(rf"^Guarantee.*?{_NEXT}", re.M | re.S)
_PARAMETERS = re.compile(rf"^Parameters\n-+\n(.*?){_NEXT}", re.M | re.S)
_ENTRY = re.compile(r"^(\w+)\n((?: {4}.*(?:\n|\Z))+)", re.M)

REGRESSION_LOSSES = '"huber", "squared" (the mean), "poisson" (the mean, whose logarithm is linear) or "quantile"'
CLASSIFICATION_LOSSES = '"logistic", "softmax" or "hinge"'


@dataclass(eq=False, repr=False)
class Parameters:
    """The parameters that all estimators of targets have. Here are the texts of those that several families have, too.

    Parameters
    ----------
    domain
        The set that theta is projected to: an `L2Ball` or a bounded `Box`; L2Ball(5) if None. The steps are planned
        from its size.
    features
        The declared public schema: the names of the features. If None, the names of the first record are taken,
        sorted.
    intercept
        Whether a constant 1 is added to x.
    ledger
        A `Ledger` that caps what each subject spends; None: no cap.
    seed
        For tests only: reproducible noise, and a statement that says "not private".
    items_per_user
        m, from 1 to 2^20: the most records of one subject in a report or window.
    spread
        The root mean square distance of a user's average gradient from the mean of all users', if it is known from
        public data; at least 1e-60. If None, bound / sqrt(m), which is right if a user's records are as different
        as those of two users. It matters for accuracy only.
    horizon
        The expected length of the stream, in {unit}s, from 1 to 10^18; batches and steps are planned for it. If None,
        the stream is learned in epochs: the first has 1024 {unit}s, and each later one twice as many. In both cases
        learning may go on beyond it.
    batch_size
        {Unit}s of a batch, from 1 to 10^18; a shorter epoch or phase is one batch. If None, the size with the least
        error bound (see `ac_sa`).
    smoothness
        The smoothness constant of the loss (positive), if a smaller one is known than the loss has for columns of a
        scale of 1.
    strong_convexity
        lambda >= 0 of the expected loss, if it is known: then learning goes in phases, each from the output of the last
        one. At most 4 bound / width of the domain.
    classes
        The public labels, at least two; (False, True) if None. Any other label raises `SchemaError`.
    change
        "follow": a change of the stream is looked for in what was released, which spends nothing, and what was learned
        before it is dropped (docs/proofs/change.md). "ignore": the average is over all of the past. None: "follow", or
        "ignore" for planned methods and with clock="records", which cannot follow.
    validation
        How records say how good the model is (see `quality`): {"share": 0.1} of them in place of being learned, in
        batches all with this share of their budget, or {"budget": "eps=0.5"}, beside it, not for windows. Batches and
        windows release one noisy sum of answers each; otherwise each record answers by itself. Regressors without
        declared bounds of the target need "bound", the largest distance of target and prediction that counts. None: no
        record is asked.
    target
        The public bounds (low, high) of the target, to which it is clipped. With an intercept, and without a domain,
        `smoothness`, `strong_convexity` and scaling="none", theta is learned in units {units}, in which the numbers of
        the loss are, too. Otherwise, and with None, theta is learned for the target as it comes, which should have a
        spread of about 1.
    """

    loss: LossName | Loss = "huber"
    budget: Budget | str | None = None
    _: KW_ONLY
    domain: Domain | None = None
    features: Sequence[str] | Mapping[str, object] | None = None
    intercept: bool = True
    ledger: "Ledger | None" = None
    seed: int | None = None
    change: OnChange | None = None


def given(kind: type[Plan], model: object) -> Plan:
    """A plan, a dataclass of this `kind`: its fields are parameters of an estimator, `model`."""
    return kind(**{field.name: getattr(model, field.name) for field in fields(kind)})


def documented(**words: str) -> Callable[[Estimator], Estimator]:
    """Return a class decorator that completes a docstring, which has a summary and then its other sections.

    The guarantee comes after the summary, and then the parameters of the constructor. Both are taken from the
    docstrings of the class and its bases, the nearest first. A text that begins with "..." continues that of the next
    base. `words` take the places of their names in braces.

    The decorator raises `KeyError` if a parameter has no description.
    """
    words = {"unit": "record"} | words
    words["Unit"] = words["unit"].capitalize()

    def complete(estimator: Estimator) -> Estimator:
        if sys.flags.optimize > 1:  # there are no docstrings
            return estimator
        known, guarantee, own = dict[str, str](), "", cleandoc(estimator.__doc__ or "")
        for kind in (Parameters, *reversed(estimator.__mro__)):
            text = cleandoc(kind.__dict__["__doc__"] or "") if kind.__module__.startswith("streamdp") else ""
            guarantee = "".join(_GUARANTEE.findall(text)) or guarantee
            for name, said in _ENTRY.findall("".join(_PARAMETERS.findall(text))):
                known[name] = (f"{known[name]} {said[8:]}" if said.startswith("    ...") else said).rstrip()
        summary, _, rest = _PARAMETERS.sub("", _GUARANTEE.sub("", own)).partition("\n\n")
        entries = "\n".join(f"{name}\n{known[name]}" for name in signature(estimator).parameters)
        found = f"{summary}\n\n{guarantee}\n\nParameters\n----------\n{entries}\n\n{rest.strip()}"
        for word, meant in words.items():
            found = found.replace(f"{{{word}}}", meant)
        estimator.__doc__ = found
        return estimator

    return complete
