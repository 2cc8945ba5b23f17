"""Encoders for River pipelines that use declared public bounds only."""

from streamdp.data.preprocessing import (
    BoundsScaler,
    CategoryEncoder,
    PrivacyWarning,
)

__all__ = [
    "BoundsScaler",
    "CategoryEncoder",
    "PrivacyWarning",
]
