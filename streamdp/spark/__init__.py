"""Learning on a Spark cluster: executors learn the shards of a batch, and the driver commits them together."""

from streamdp.errors import NotAvailableError, needing

with needing("streamdp.spark", "spark", NotAvailableError):
    import nacl as _nacl  # noqa: F401
    import pyarrow as _pyarrow  # noqa: F401
    import pyspark as _pyspark  # noqa: F401

from streamdp.spark.learning import StreamLearner, learn, learn_stream
from streamdp.spark.predicting import predict

__all__ = ["StreamLearner", "learn", "learn_stream", "predict"]
