"""An exported model as a value, and the names that it adds to those of its columns."""

from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]
"""An exported model, or a part of it, as JSON values: see `export.exported_model`."""
PREDICTION, SHARE = "prediction", "probability of "
"""The columns of the prediction, and of the probability of a class, whose text follows."""
PREFIX = "streamdp:"
"""Of what has a name only inside of the file."""
