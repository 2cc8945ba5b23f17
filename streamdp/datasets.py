"""Demonstration streams: real flights and simulated data."""

from streamdp.data.datasets import (
    INSURANCE_BASE,
    INSURANCE_NOISE_SD,
    LATE_MINUTES,
    SEASONS,
    flights,
    insurance,
    linear,
    linear_theta,
    logistic,
    write_flights_csv,
)

__all__ = [
    "INSURANCE_BASE",
    "INSURANCE_NOISE_SD",
    "LATE_MINUTES",
    "SEASONS",
    "flights",
    "insurance",
    "linear",
    "linear_theta",
    "logistic",
    "write_flights_csv",
]
