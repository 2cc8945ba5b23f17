"""The linear models of diffprivlib, in an environment of its own: `python diffprivlib_models.py FILE.npz OUT.npy`.

diffprivlib 0.6.6 does not import with scikit-learn 1.6 or later, so it is not in the environment of streamdp, and this
file imports nothing of it. FILE has columns `X` (n, p) and `held` (m, p) in [-1, 1], outcomes `y` (n,), `target` (2,)
with their bounds, or (0,) for classes 0 to `classes` - 1, the `epsilons` and a `seed`. OUT gets what is predicted for
`held` at each epsilon: numbers (E, m), or chances (E, m, classes). The guarantee is epsilon-DP, with delta = 0.
"""

import sys
import warnings

import numpy as np
from diffprivlib.models import LinearRegression, LogisticRegression  # type: ignore[import-not-found]


def main(source: str, out: str) -> None:
    """Learn at each epsilon, and write what is predicted."""
    data = np.load(source)
    X, y, held, target = data["X"], data["y"], data["held"], data["target"]
    p, classes, found = X.shape[1], int(data["classes"]), []
    for epsilon in data["epsilons"].tolist():
        options = {"epsilon": epsilon, "random_state": int(data["seed"])}
        if classes:
            model = LogisticRegression(data_norm=p**0.5, **options).fit(X, y.astype(int))
            chances = np.full((len(held), classes), 1e-15)
            chances[:, model.classes_] = model.predict_proba(held)
            found.append(chances / chances.sum(axis=1, keepdims=True))
        else:
            low, high = target.tolist()
            model = LinearRegression(bounds_X=(-1, 1), bounds_y=(low, high), **options).fit(X, y)
            found.append(np.clip(model.predict(held), low, high))
    np.save(out, np.array(found))


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(*sys.argv[1:])
