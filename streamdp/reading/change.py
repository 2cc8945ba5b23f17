"""Averages of released batches, and the test by which a change of the stream is noticed in them.

A batch gives a query point p, a noisy mean gradient g at it, and a number omega, its weight. Kept are the weighted sums
of both in blocks: four of one batch, four of two, four of four, and so on, the newest last. If the stream changes, the
blocks before the change are dropped. Claim: the test and all that follows from it spend nothing. The test, its bounds
and the proof: docs/proofs/curvature.md. LDP learners look for changes in single reports: docs/proofs/change.md.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from streamdp.errors import ConfigError, check_choice

DELTA = 1e-6  # the probability of a false alarm
_EACH, _LEVELS = 4, 10
_OFTEN = 4  # changes, of which some may be the way back
_BENT = 0.3  # the share by which a gradient may change otherwise than by the Hessian on its way
BLOCKS = _EACH * _LEVELS + 1
WEIGHT, SCALE_WEIGHT, INFORMATION, SQUARES, NOISE, RECORDS, LEVEL = range(-7, 0)
"""The last columns of a block: sums of omega, of omega where the scale counts, of tau, of omega^2 / b, of (omega z /
b)^2 and of records; and the level of the block, 0 if it is not in use."""


class Change(NamedTuple):
    """The first block after a change of the stream, and whether only Huber's scale changed.

    `new`: it is not the change that was noticed last, on which the blocks are divided anew.
    """

    block: int
    scale_alone: bool
    new: bool = True


def about(changes: int, record: int | None) -> str | None:
    """Say that the stream has changed, without a full stop; None if it has not.

    The last of these `changes` was noticed after the `record` of this number, None: not known. After several it says
    what is better than to follow a stream that comes back, such as with the seasons.
    """
    if not changes:
        return None
    noticed = "" if record is None else f" after record {record:,}"
    said = f"the stream has changed, as noticed{noticed} from released numbers; the model follows since"
    if changes < _OFTEN:
        return said
    return (
        f"{said}. It has changed {changes} times: if that is the hour, the weekday or the season, a column of it, or "
        'change="ignore", is likely to have a smaller error than following'
    )


OnChange = Literal["follow", "ignore"]
"""What a learner does about a change of its stream."""


def follows(choice: OnChange | None, unable: str | None) -> bool:
    """Whether a learner looks for changes: "follow" or "ignore" of its parameter `change`, or None: if it can.

    `unable` says when it cannot, such as 'with clock="records"'; None: it can. Raises `ConfigError` for another choice,
    and for "follow" if it cannot.
    """
    if choice is not None:
        check_choice("change", choice, get_args(OnChange), " or None")
    if choice == "follow" and unable is not None:
        raise ConfigError(f"change: no changes are looked for {unable}: leave it out, or set it to ignore")
    return unable is None and choice != "ignore"


def width(d: int) -> int:
    """Return the length of a block: the weighted query points (d,) and gradients (d,), and seven sums."""
    return 2 * d + 7


def least_sum(d: int) -> float:
    """Return the least sum of z_j^2 over d coordinates that can be a change."""
    doubt = math.log(1 / DELTA)
    return d + 2 * math.sqrt(d * doubt) + 2 * doubt


def used(blocks: np.ndarray) -> int:
    """Return how many blocks (BLOCKS, width) are in use; they come first."""
    return int(np.count_nonzero(blocks[:, LEVEL]))


def add(blocks: np.ndarray, block: np.ndarray) -> None:
    """Add a block (width,) of one batch to blocks (BLOCKS, width) in place, and join older ones.

    The level is set here.
    """
    end = used(blocks)
    blocks[end], blocks[end, LEVEL] = block, 1
    end += 1
    levels = blocks[:end, LEVEL].tolist()
    for level in range(1, _LEVELS + 1):
        if levels.count(level) <= _EACH:
            return
        first = levels.index(level)
        blocks[first + 1] += blocks[first]
        blocks[first + 1, LEVEL] = levels[first + 1] = min(level + 1, _LEVELS)
        del levels[first]
        blocks[first : end - 1] = blocks[first + 1 : end]
        blocks[end - 1] = 0
        end -= 1


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the blocks (BLOCKS, width) of disjoint records, at least one part: those of equal age and level added up.

    The sum is commutative and associative.
    """
    found: dict[tuple[float, int], np.ndarray] = {}
    for part in parts:
        levels = part[: used(part), LEVEL].tolist()
        for i, level in enumerate(levels):
            key = level, levels[i:].count(level)  # the newest of a level is the first
            found[key] = found.get(key, 0.0) + part[i]
            found[key][LEVEL] = level
    out = np.zeros_like(parts[0])
    for i, key in enumerate(sorted(found, reverse=True)):
        out[i] = found[key]
    return out


def means(total: np.ndarray, d: int, has_scale: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean query points (..., d) and gradients (..., d) of sums of blocks (..., width); 0 of none.

    `total` are the sums; `has_scale` tells whether the last parameter is Huber's scale.
    """
    weights = np.repeat(total[..., [WEIGHT]], d, axis=-1)
    if has_scale:
        weights[..., -1] = total[..., SCALE_WEIGHT]
    inverse = np.divide(1.0, weights, out=np.zeros_like(weights), where=weights > 0)
    return total[..., :d] * inverse, total[..., d : 2 * d] * inverse


def find(
    blocks: np.ndarray,
    hessian: np.ndarray,
    variances: np.ndarray,
    scale: float | None,
    curved: bool,
    least: float,
    entry: float = 0.0,
    larger: float = 1.0,
) -> Change | None:
    """Return where the stream changed; None if it did not.

    `blocks` are (BLOCKS, width). `hessian` (d, d) is A, which carries gradients from one query point to another; if it
    is `curved` it may be wrong by a factor of two on the way from the first blocks to the last ones, else by a share of
    .3; `entry` is the variance of the noise on an entry; at the last query point A may be `larger` by this factor, at
    least 1. `variances` (d,) are v. `scale` is Huber's, the last
    parameter, or None. `least` is the fewest records of the last blocks.
    """
    d, end, has_scale = len(variances), used(blocks), scale is not None
    if end < 2:
        return None
    last = np.cumsum(blocks[end - 1 : 0 : -1], axis=0)[::-1]  # of the blocks from i on, i = 1, 2, ...
    first = np.cumsum(blocks[: end - 1], axis=0)
    records = last[:, RECORDS]
    able = (records >= least) & (last[:, INFORMATION] <= first[:, INFORMATION]) & (first[:, WEIGHT] > 0)
    if not able.any():
        return None
    (p1, g1), (p2, g2) = means(first, d, has_scale), means(last, d, has_scale)
    moved = p2 - p1
    carried = moved @ hessian
    away = np.abs(g2 - g1 - carried)
    margin = np.abs(carried)
    if scale is not None:
        margin[:, -1] += np.maximum(np.einsum("ij,ij->i", moved[:, :-1], carried[:, :-1]), 0.0) / scale
    margin *= (1.0 if curved else _BENT) + larger - 1.0
    if scale is not None:
        margin[:, :-1] += larger * _softer(blocks[:end], p2, hessian[:-1, :-1], scale)
    away = np.maximum(away - margin, 0.0)
    spread = _variance(first, variances) + _variance(last, variances)
    spread += entry * np.sum(moved[:, : d - has_scale] ** 2, axis=1, keepdims=True)
    squares = np.divide(away**2, spread, out=np.zeros_like(away), where=spread > 0)
    if has_scale:  # the first blocks in which it counts
        counts = blocks[:end, SCALE_WEIGHT] > 0
        part = blocks[:end] * counts[:, None]
        before, after = np.cumsum(part[:-1], axis=0), np.cumsum(part[:0:-1], axis=0)[::-1]
        both = (before[:, SCALE_WEIGHT] > 0) & (after[:, SCALE_WEIGHT] > 0)
        own = _variance(before, variances[-1:])[:, 0] + _variance(after, variances[-1:])[:, 0]
        squares[:, -1] = np.divide(away[:, -1] ** 2, own, out=np.zeros(len(own)), where=both & (own > 0))
    doubt = math.log(1 / DELTA) + 2 * np.log((first[:, RECORDS] + records) / np.maximum(records, 1.0))
    largest = 2 * (doubt + math.log(d))
    ratios = np.maximum(squares.sum(axis=1) / (d + 2 * np.sqrt(d * doubt) + 2 * doubt), squares.max(axis=1) / largest)
    ratios[~able] = 0.0
    at = int(np.argmax(ratios))
    if not ratios[at] > 1:
        return None
    others = squares[at, :-1]
    m = max(len(others), 1)
    alone = has_scale and squares[at, -1] > largest[at] and others.max(initial=0.0) <= 4
    return Change(at + 1, bool(alone and others.sum() <= m + 1.65 * math.sqrt(2 * m)))


def step(sums: np.ndarray, counts: np.ndarray, variances: np.ndarray, noise: float) -> int | None:
    """Return the first part of a window after a change; None if it did not change, or little by little.

    `sums` (k, d) are the noisy sums of gradients at one point of so many users, `counts` (k,), in each part. A gradient
    has at most the `variances` (d,), and a sum noise with the variance `noise`. A change that a line through the parts
    explains better than one step is that of a file that is sorted, or of no moment.
    """
    k, d = sums.shape
    before, after = (np.cumsum(found, axis=0)[:-1] for found in (sums, sums[::-1]))
    n1, n2 = (np.maximum(np.cumsum(found)[:-1], 1e-9)[:, None] for found in (counts, counts[::-1]))
    parts = np.arange(1.0, k)[:, None]
    after, n2 = after[::-1], n2[::-1]
    spread = variances * (1 / n1 + 1 / n2) + noise * (parts / n1**2 + (k - parts) / n2**2)
    squares = (before / n1 - after / n2) ** 2 / spread
    doubt = math.log(k / DELTA)
    ratios = np.maximum(
        squares.sum(axis=1) / (d + 2 * math.sqrt(d * doubt) + 2 * doubt),
        squares.max(axis=1) / (2 * (doubt + math.log(d))),
    )
    at = int(np.argmax(ratios))
    if not ratios[at] > 1:
        return None
    each = sums / np.maximum(counts, 1e-9)[:, None] / np.sqrt(spread[at])
    each -= each.mean(axis=0)
    shapes = np.arange(k) > at, np.arange(float(k))
    explained = [float(np.sum(((shape - shape.mean()) / shape.std() @ each) ** 2)) for shape in shapes]
    return at + 1 if explained[0] > explained[1] else None


def _softer(blocks: np.ndarray, last: np.ndarray, hessian: np.ndarray, scale: float) -> np.ndarray:
    """By how much the mean gradients (k - 1, q) of the first blocks may differ because theirs had a larger scale.

    `blocks` are (k, width), and `last` (k - 1, d) the mean query points of those from each one on. At a scale s above
    the present one, `hessian` (q, q) is smaller by the factor scale / s.
    """
    q, d = len(hessian), last.shape[1]
    weights = np.maximum(blocks[:-1, [WEIGHT]], 1e-100)
    points = blocks[:-1, :d] / weights
    ways = np.abs((points[:, None, :q] - last[None, :, :q]) @ hessian)  # of each first block, for each division
    part = weights[:, 0] * (1 - np.minimum(1.0, scale / np.maximum(points[:, -1], scale)))
    sums = np.cumsum(part[:, None, None] * ways, axis=0)
    total = np.cumsum(weights, axis=0)
    return np.diagonal(sums).T / total


def _variance(total: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """The variance (k, d) of the mean gradients of sums of blocks (k, width)."""
    weights = np.maximum(total[:, WEIGHT], 1e-100) ** 2
    return (np.outer(total[:, SQUARES], variances) + total[:, [NOISE]]) / weights[:, None]


def forget_scale(blocks: np.ndarray, d: int, before: int) -> None:
    """Leave the scale, the last of d parameters, out of the first blocks, `before` many, in place."""
    blocks[:before, [d - 1, 2 * d - 1, SCALE_WEIGHT]] = 0.0


def forget(blocks: np.ndarray, before: int) -> None:
    """Drop the first blocks, `before` many, in place."""
    kept = blocks[before:].copy()
    blocks[:] = 0.0
    blocks[: len(kept)] = kept


def check(blocks: np.ndarray) -> None:
    """Raise `ConfigError` for finite blocks that `add` cannot have made."""
    levels, sums = blocks[:, LEVEL], blocks[:, WEIGHT:LEVEL]
    whole = np.all(levels == np.round(levels)) and np.all(np.diff(levels) <= 0) and levels.max() <= _LEVELS
    counted = np.all(sums >= 0) and np.all(sums[:, 0] <= sums[:, 2] * (1 + 1e-9)) and np.all(sums[:, 1] <= sums[:, 0])
    unused = not blocks[levels == 0].any() and levels[-1] == 0
    in_use = np.all(sums[levels > 0, 0] > 0)
    if not (whole and counted and unused and in_use and levels.min() >= 0):
        raise ConfigError("state: its averages are out of range")
