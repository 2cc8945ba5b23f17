"""Hostile randomizer documents, and what both devices make of them with the same random words."""

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import rfc8785

from streamdp.errors import StreamDPError
from streamdp.estimators import accepted
from streamdp.privacy.entropy import SeededEntropy
from streamdp.protocol.local_agreement import LocalAgreement
from streamdp.protocol.local_half import LocalHalf
from tests.support.node import node
from tests.support.vectors import PATH

FOREVER = 4102444800.0
POOL = 4096
DRAW = 1000  # words from the place of a draw to the end of the pool, at least
AGREED = ("protocol", "job", "schema", "loss", "mechanism", "budget")
AGREED_STATISTICS = ("protocol", "job", "schema", "statistics", "budget")
Made = list[Any] | str | None
"""For each record an answer or the text of an error; None if the document was refused; a text for an untyped error."""

_EDGES = [
    accepted.LEAST,
    accepted.MOST,
    accepted.FURTHEST,
    accepted.FINEST,
    1 / accepted.FINEST,
    1e-6,
    8.0,
    2.0,
    1.0,
    0.5,
]
NUMBERS = [
    *(s * np.nextafter(edge, to) for edge in _EDGES for s in (1, -1) for to in (0, np.inf)),
    *(s * edge for edge in _EDGES for s in (1, -1)),
    *(s * v for v in (0.0, 5e-324, 2.3e-308, 1e-200, 1e-9, 3.0, 1e20, 1e160, 1e200, 1.7e308) for s in (1, -1)),
]
"""The edges of what is accepted, the doubles beside them, and extremes."""

_JUNK = [
    None,
    True,
    False,
    "1",
    "",
    "gradient",
    [],
    {},
    [0.0],
    [0.0, 1.0, 2.0],
    2**53,
    10**30,
    "NaN",
    "Infinity",
    "\ud800",
]
_BUDGETS = {
    "privunit": ["eps=1", "eps=0.01", "eps=9.5367431640625e-07", "eps=1048576", "eps=700"],
    "laplace": ["eps=1", "eps=9.5367431640625e-07", "eps=1048576", "eps=3"],
    "gaussian": ["mu=1", "mu=9.5367431640625e-07", "mu=1048576", "eps=1,delta=1e-06", "eps=0.5,delta=1e-300"],
}
_BAD_BUDGETS = [
    "eps=0", "eps=1e9", "mu=1,eps=1", "eps=inf", "eps=1,delta=1", "EPS=1", "eps= 1", "eps=1_0", "mu=-1", "eps=1e-7",
]  # fmt: skip


def document_of(agreement: dict[str, Any], theta: list[float], scales: list[list[float]], ask: Any) -> dict[str, Any]:
    """A document with the digest of its agreement, where it has one."""
    document = agreement | {"version": 3, "expires_at": FOREVER, "theta": theta, "scales": scales, "ask": ask}
    return document | {"agreement": digest(document)}


def digest(document: dict[str, Any]) -> str:
    """The digest as any party computes it from the JSON."""
    from hashlib import sha256

    try:
        names = AGREED_STATISTICS if "statistics" in document else AGREED
        agreed = json.loads(json.dumps({name: document.get(name) for name in names}), parse_int=float)
        return sha256(rfc8785.dumps(agreed)).hexdigest()
    except (rfc8785.CanonicalizationError, ValueError):
        return "0" * 64


class Hostile:
    """Makes documents and records from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        known = json.loads(PATH.read_text())
        self._known, self._surveys = ([case["document"] for case in known[kind]] for kind in ("cases", "statistics"))

    def pick(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def number(self) -> float:
        """An edge or an extreme, or a number of any size."""
        if self.chance(0.6):
            return float(self.pick(NUMBERS))
        return float(self.rng.choice([-1, 1]) * 10 ** self.rng.uniform(-3, 3 if self.chance(0.7) else 300))

    def good(self, low: float, high: float) -> float:
        """A number in [low, high], often an end or beside it; seldom another one."""
        if self.chance(0.005):
            return self.number()
        ends = [low, high, float(np.nextafter(low, high)), float(np.nextafter(high, low))]
        return (
            float(self.pick(ends)) if self.chance(0.5) else float(self.rng.uniform(max(low, -1e300), min(high, 1e300)))
        )

    def units(self, middle: float = 0.0, half: float = 1.0) -> list[float]:
        """Centre and scale, mostly at the edges of what is accepted."""
        scale = (
            self.number() if self.chance(0.01) else half * 2.0 ** self.pick([-40, 40, float(self.rng.uniform(-40, 40))])
        )
        return [self.good(middle - 2 * half, middle + 2 * half), scale]

    def bounds(self) -> list[float]:
        if self.chance(0.5):
            return [-30.0, float(self.pick([60.0, -29.0, 1e6]))]
        middle = float(self.rng.choice([-1, 1]) * 10.0 ** self.rng.uniform(-60, 59)) if self.chance(0.5) else 0.0
        half = float(10.0 ** self.rng.uniform(-60, 60)) if self.chance(0.5) else abs(middle) * 2**-20 + 1e-60
        return [middle - half, middle + half]

    def random(self) -> dict[str, Any]:
        """A document of a random agreement, whose numbers are mostly near the edges."""
        features: list[dict[str, Any]] = []
        for name in "abcd"[: int(self.rng.integers(1, 5))]:
            kind = (
                {"bounds": self.bounds()} if self.chance(0.6) else {"categories": ["u", "v", "w"][: self.pick([2, 3])]}
            )
            features.append({"name": name} | kind)
        loss = self.pick(["squared", "huber", "logistic", "softmax", "quantile", "hinge"])
        classes = {"logistic": ["0", "1"], "hinge": ["no", "yes"], "softmax": ["x", "y", "z"]}.get(loss)
        if loss == "softmax" and self.chance(0.3):
            classes = ["x", "y"]
        bounds = self.bounds() if classes is None and self.chance(0.7) else None
        scale = 1.0 if classes else float(10.0 ** self.pick([0, 0, 0, 1, -60, 60, -3]))
        target = {"name": "t", "classes": classes, "bounds": bounds, "scale": scale}
        intercept = self.chance(0.7)
        schema = {"features": features, "target": target, "intercept": intercept, "subject": None}
        if self.chance(0.1):
            schema["subject"] = self.pick(["text", "integer"])
        parameters, constants = self._loss(loss)
        mechanism = self.pick(list(_BUDGETS))
        agreement = {
            "protocol": 1,
            "job": "j",
            "schema": schema,
            "loss": {"name": loss, "parameters": parameters} | constants,
            "mechanism": mechanism,
            "budget": self.pick(_BAD_BUDGETS) if self.chance(0.02) else self.pick(_BUDGETS[mechanism]),
        }
        p = sum(len(f.get("categories", "xx")) - 1 for f in features)
        q = p + intercept
        d = {"softmax": q * max(2, len(classes or ())), "huber": q + 1, "squared": q + 1}.get(loss, q)
        theta = self._theta(d, parameters)
        scales = [self.units() for _ in range(p)] + [[0.0, 1.0]]
        if bounds is not None and self.chance(0.7):
            low, high = (bound / scale for bound in bounds)
            scales[-1] = self.units((low + high) / 2, (high - low) / 2)
        return document_of(agreement, theta, scales, self._ask(features, bounds))

    def _loss(self, name: str) -> tuple[dict[str, Any], dict[str, float]]:
        from streamdp.optim.losses import LOSSES

        extreme = self.pick([1e-60, 1e60, 1.0, 1e-3, 2.0, 1e30])
        given: dict[str, Any] = {"clip": None, "weighting": self.pick([None, "mallows", "norm"])}
        if self.chance(0.3):
            given = {"clip": extreme, "weighting": None}
        shape, least = self.pick([1e-6, 2.0, 1.345, 0.01]), self.pick([1e-60, 0.1, 1e60, 1.0])
        given |= {
            **{key: {"c": shape, "sigma_min": least} for key in ("squared", "huber")},
            "quantile": {"tau": self.pick([1e-60, 0.5, 0.9999999999999999, 0.9])},
        }.get(name, {})
        try:
            loss = LOSSES[name](**given)
            return given, {"bound": loss.bound, "sensitivity": loss.sensitivity}
        except StreamDPError:
            return given, {"bound": 1.0, "sensitivity": 2.0}

    def _theta(self, d: int, parameters: dict[str, Any]) -> list[float]:
        most = float(self.pick([accepted.FURTHEST, 10.0, 1.0, 1e-100]))
        theta = [self.good(-most, most) for _ in range(d)]
        if "sigma_min" in parameters:
            theta[-1] = parameters["sigma_min"] * self.pick([1, 1, 2, 1 - 1e-9, 1e40])
        return theta

    def _ask(self, features: list[dict[str, Any]], bounds: Any) -> Any:
        if self.chance(0.7):
            return "gradient"
        column = self.pick([f["name"] for f in features] + ["t"])
        if self.chance(0.4):
            return {"column": column, "below": self.good(-8, 8)}
        return {
            "column": column,
            "centre": self.good(-4, 4),
            "within": self.pick([self.good(0, 4), 5e-324, 1e-17, 1.0]),
        }

    def mutated(self) -> dict[str, Any]:
        """A valid document in which one to three places were changed, often under a digest that fits again."""
        document = copy.deepcopy(self.pick(self._known) if self.chance(0.5) else self.random())
        document["expires_at"] = FOREVER
        for _ in range(int(self.pick([1, 1, 1, 2, 3]))):
            self.change(document, self.pick(["theta", "scales", "scales", "ask", "schema", "loss", None]))
        if self.chance(0.5):
            document["agreement"] = digest(document)
        return document

    def statistics(self) -> dict[str, Any]:
        """A document about statistics with other numbers, and often with up to two places changed."""
        document = copy.deepcopy(self.pick(self._surveys))
        document["thresholds"] = [[self.good(-1, 1) for _ in each] for each in document["thresholds"]]
        for one in document["statistics"]:
            one["share"] = float(self.rng.uniform(0.05, 0.3))
            one["quantile"] = one["quantile"] and float(self.pick([1e-9, 0.5, 0.999]))
            one["levels"] = one["levels"] and int(self.pick([2, 3, 9, 17]))
            for sorter in one["by"]:
                sorter["edges"] = sorter["edges"] and sorted(self.good(-1, 1) for _ in range(self.pick([1, 3, 12])))
        document["schema"]["features"][0]["bounds"] = self.bounds()
        document["schema"]["subject"] = self.pick([None, None, "text", "integer"])
        for _ in range(int(self.pick([0, 0, 1, 1, 2]))):
            self.change(document, self.pick(["statistics", "statistics", "schema", "thresholds", None]))
        if self.chance(0.8):
            document["agreement"] = digest(document)
        return document

    def change(self, document: dict[str, Any], part: str | None = None) -> None:
        """Change one place of a document, of a part of it if one is named."""
        at: Any = document
        key: Any = part if part in document else self.pick(list(document))
        while isinstance(at[key], dict | list) and at[key] and self.chance(0.9):
            at = at[key]
            key = self.pick(list(at)) if isinstance(at, dict) else int(self.rng.integers(len(at)))
        old = at[key]
        if isinstance(old, float | int) and not isinstance(old, bool) and self.chance(0.8):
            at[key] = self.number()
        elif isinstance(at, dict) and self.chance(0.2):
            at.pop(key)
        elif isinstance(at, dict) and self.chance(0.1):
            at[self.pick(["extra", "bounds", "__proto__", "name"])] = self.pick(_JUNK)
        elif isinstance(at, list) and self.chance(0.3):
            at.append(copy.deepcopy(old)) if self.chance(0.5) else at.pop(key)
        else:
            at[key] = self.pick(_JUNK) if self.chance(0.7) else self.number()

    def text(self, document: dict[str, Any]) -> str:
        """JSON, seldom with a number that is none."""
        found = json.dumps(document)
        return found.replace("1.0", self.pick(["1e999", "NaN", "-1e999"]), 1) if self.chance(0.005) else found

    def records(self, document: dict[str, Any], n: int) -> list[list[Any]]:
        """Admissible records of a document that was accepted: ends of bounds, far outside, each class and category."""
        schema, out = document["schema"], []
        target = schema.get("target")
        for _ in range(n):
            x = {f.get("column") or f["name"]: self._of(f) for f in schema["features"] if f.get("product") is None}
            y = target and self.pick(target["classes"] or self._values(target["bounds"] or [-1.0, 1.0]))
            out.append([x, y, {None: None, "text": "ann", "integer": 7}[schema["subject"]]])
        return out

    def _of(self, feature: dict[str, Any]) -> Any:
        """A value of a feature."""
        if isinstance(feature.get("cyclic"), str):
            return "2013-07-05T17:59:00"
        if feature.get("hash") is not None or "text" in feature:
            return self.pick(["N14", "\u00fc", "x", "té", "\U0001f600"])
        return self.pick(feature.get("categories") or self._values(feature.get("bounds")))

    def _values(self, bounds: list[float] | None) -> list[float]:
        low, high = bounds or (-1.0, 1.0)
        return [low, high, low / 2 + high / 2, 0.0, 1.7e308, -1.7e308, 5e-324, float(self.rng.uniform(-1, 1))]


class PoolWords(SeededEntropy):
    """The words of a pool from a place on, anew for each record; more of them are an error.

    Statistics draw theirs at once.
    """

    def __init__(self, pool: np.ndarray, at: int) -> None:
        super().__init__(0, len(pool) - at)
        self._given = pool[at:]
        self.again()

    def again(self) -> None:
        """Begin with the first word."""
        self.words[0], self.words[1:] = 1, self._given

    def draw(self, count: int) -> np.ndarray:
        assert count < len(self.words), "a draw needs more words than it has"
        return self.words[1 : 1 + count].copy()

    def _renew(self, length: int) -> None:
        raise AssertionError("a draw needs more words than it has")


def pool(seed: int) -> np.ndarray:
    """Random words (POOL,) uint64, none of them 0."""
    return np.random.default_rng(seed).integers(1, 2**64, POOL, dtype=np.uint64)


def in_python(
    text: str, pinned: str | None, records_of: Callable[[], list[list[Any]]], words: np.ndarray, at: int
) -> Made:
    """What the Python device makes of a document; `records_of` is called if it is accepted and not too old."""
    rng = PoolWords(words, at)
    try:
        half = LocalHalf(text.encode("utf-8", "surrogatepass"), pinned, rng)
    except StreamDPError:
        return None
    out: list[Any] = []
    for x, y, subject in records_of() if half.fresh else ():
        rng.again()
        try:
            made = half.report(x, y, "r", subject=subject)
        except Exception as error:  # noqa: BLE001 - any error is a finding
            out.append(f"{type(error).__name__}: {error}")
        else:
            about = [made["statistic"], *made["answer"]] if "answer" in made else made.get("gradient", made.get("bit"))
            out.append(about)
    return out


def in_javascript(asked: list[dict[str, Any]], words: np.ndarray) -> list[Made]:
    """What the JavaScript device makes of documents: `asked` has text, pinned, records and at of each."""
    halves = [[int(word) & 0xFFFFFFFF, int(word) >> 32] for word in words]
    ran = node("clients/js/hostile.mjs", given=json.dumps({"words": halves, "documents": asked}).encode())
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def is_finite(answer: Any) -> bool:
    """Whether an answer is a bit or a vector of finite numbers."""
    return isinstance(answer, bool) or (
        isinstance(answer, list)
        and bool(answer)
        and all(isinstance(v, float | int) and math.isfinite(v) for v in answer)
    )


def agree(one: Any, other: Any, cell: float) -> bool:
    """Whether two answers are the same but for rounding; `cell` is how far a coordinate may be off."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return len(one) == len(other) and bool(np.all(np.abs(np.subtract(one, other)) <= cell + 1e-9 * np.abs(other)))


def steady(document: dict[str, Any]) -> bool:
    """Whether rounding cannot change a gradient by much: sums have no large terms, and residuals are not magnified.

    The languages add up in another order, so at extreme points only finiteness can be compared.
    """
    theta, finest = np.abs(document["theta"]), min(scale for _, scale in document["scales"][:-1])
    small = theta.max() * max(1.0, 4 / finest) * len(theta) <= 1e6
    return bool(small and (document["loss"]["name"] != "huber" or theta[-1] >= 1e-3))


def cell_of(document: dict[str, Any]) -> float:
    """The grid of a document's noise; for PrivUnit what the search for its cap leaves open, too."""
    agreed = LocalAgreement.model_validate({name: document[name] for name in AGREED}, strict=False)
    from streamdp.privacy import samplers
    from streamdp.privacy.guarantees import parse_budget
    from streamdp.privacy.mechanisms import MECHANISMS

    made = MECHANISMS[agreed.mechanism](parse_budget(agreed.budget), agreed.loss.bound, agreed.loss.sensitivity)
    row = made.rows(len(document["theta"]))[0]
    scale = float(row[samplers.SCALE])
    return scale * 1e-4 if agreed.mechanism == "privunit" else 2 * float(row[samplers.GRID])
