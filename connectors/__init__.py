"""Sources of records and sinks of dead letters, behind the protocols of `streamdp.data.records`.

Kafka and Avro need extras, and are in `connectors.kafka` and `connectors.avrorows`.
"""

from connectors.files import CSVSource, JSONLSource
from connectors.jsonrows import encode_json
from connectors.letterfile import DeadLetterFile

__all__ = ["CSVSource", "DeadLetterFile", "JSONLSource", "encode_json"]
