"""The guarantee in words, as a user would hand it to the people whose records are learned from."""

from __future__ import annotations

from streamdp.guarantees import ApproxDP, Budget, GaussianDP, Guarantee, PureDP


def in_words(budget: Budget) -> str:
    """One sentence on what a budget means.

    >>> in_words(PureDP(1.0))
    'epsilon = 1: no output is more than 2.72 times as likely with one record as with any other in its place'
    """
    import math

    match budget:
        case PureDP(epsilon):
            return (
                f"epsilon = {epsilon:g}: no output is more than {math.exp(epsilon):.3g} times as likely with one "
                "record as with any other in its place"
            )
        case ApproxDP(epsilon, delta):
            return f"(epsilon, delta) = ({epsilon:g}, {delta:g}): epsilon = {epsilon:g} but for a mass of {delta:g}"
        case GaussianDP(mu):
            return (
                f"mu = {mu:g} (Gaussian DP): as hard to tell one record from another as one draw of N(0, 1) from "
                f"one of N({mu:g}, 1); implies epsilon = {budget.epsilon(1e-6):.3g} at delta = 1e-6"
            )


def statement(
    guarantee: Guarantee, *, learned: int, refused: int, per_subject: str, caveats: tuple[str, ...] = ()
) -> str:
    """The statement of an estimator: what is promised to whom, against whom, and what is not.

    `per_subject` says what holds for a person with several records.
    """
    lines = [f"Privacy statement after {learned:,} records learned and {refused:,} refused."]
    if not guarantee.private:
        lines.append("NOT PRIVATE: no promise is made to anyone.")
    elif not guarantee.budgets:
        lines.append("Nothing has been learned, so nothing has been spent.")
    else:
        lines.append("The strongest spend of any single record:")
        lines += [f"  - {in_words(budget)}." for budget in guarantee.budgets]
    lines.append(f"Neighbours: {guarantee.neighbours}.")
    lines.append(f"Whom to trust: {guarantee.trust}.")
    lines.append(f"One person, several records: {per_subject}.")
    lines += [f"Note: {caveat}." for caveat in caveats]
    return "\n".join(lines)
