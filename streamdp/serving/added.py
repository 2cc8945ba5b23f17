"""The names that an exported model adds to those of its columns."""

PREDICTION, SHARE = "prediction", "probability of "
"""The columns of the prediction, and of the probability of a class, whose text follows."""
PREFIX = "streamdp:"
"""Of what has a name only inside of the file."""
