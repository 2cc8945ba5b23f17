"""One stream, learned under each kind of trust. Run with: python -m examples.trust

Each of 10,000 people has 16 records. The first learners protect a record, the last two all records of a person.
"""

from __future__ import annotations

import numpy as np

from streamdp import (
    LDPASGDClassifier,
    PanPrivateClassifier,
    ShuffleClassifier,
    UserLevelLDPClassifier,
    WindowedClassifier,
)

NAMES = ["a", "b", "c"]


def main(people: int = 10_000, each: int = 16) -> None:
    """Learn and print the accuracy on records that nobody learned, and what is promised."""
    rng = np.random.default_rng(0)
    n = people * each
    X = rng.uniform(-1, 1, (n + 5_000, 3))
    y = (X @ [2, -1, 0] + rng.normal(0, 0.5, len(X)) > 0).astype(float)
    subjects = [f"p{i % people}" for i in range(n)]
    batch = "eps=1,delta=1e-6"
    learners = {
        "nobody is trusted": LDPASGDClassifier(features=NAMES, budget="eps=1"),
        "the operator, while a record passes": PanPrivateClassifier(features=NAMES, budget=batch),
        "a shuffler": ShuffleClassifier(features=NAMES, budget=batch),
        "nobody, for a person": UserLevelLDPClassifier(features=NAMES, budget="eps=4", items_per_user=each, window=n),
        "the operator, for a person": WindowedClassifier(features=NAMES, budget=batch, items_per_user=each, window=n),
    }
    for trusted, model in learners.items():
        model.learn_arrays(X[:n], y[:n], subjects=subjects)
        if hasattr(model, "close_batch"):
            model.close_batch()
        accuracy = np.mean(model.predict_arrays(X[n:]) == y[n:])
        print(f"{trusted:36} accuracy {accuracy:.3f}   {model.guarantee}")


if __name__ == "__main__":
    main()
