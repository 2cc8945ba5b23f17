"""streamdp: learn continuously from streams of personal records under differential privacy."""

from streamdp.domains import Box, L2Ball, RealSpace
from streamdp.estimators import (
    LDPASGDClassifier,
    LDPASGDRegressor,
    LDPSGDClassifier,
    LDPSGDRegressor,
)
from streamdp.guarantees import ApproxDP, GaussianDP, Guarantee, PureDP, parse_budget
from streamdp.losses import Hinge, Huber, Logistic, Quantile, Softmax, Squared
from streamdp.mechanisms import Gaussian, Laplace, PrivUnit

__version__ = "0.1.0"

__all__ = [
    "ApproxDP",
    "Box",
    "Gaussian",
    "GaussianDP",
    "Guarantee",
    "Hinge",
    "Huber",
    "L2Ball",
    "LDPASGDClassifier",
    "LDPASGDRegressor",
    "LDPSGDClassifier",
    "LDPSGDRegressor",
    "Laplace",
    "Logistic",
    "PrivUnit",
    "PureDP",
    "Quantile",
    "RealSpace",
    "Softmax",
    "Squared",
    "parse_budget",
]
