"""Encoders for River pipelines that use declared public bounds only, and a check of pipelines for parts that learn."""

from streamdp.data.preprocessing import (
    BoundsScaler,
    CategoryEncoder,
)
from streamdp.errors import PrivacyWarning
from streamdp.estimators.parts import check_pipeline

__all__ = [
    "BoundsScaler",
    "CategoryEncoder",
    "PrivacyWarning",
    "check_pipeline",
]
