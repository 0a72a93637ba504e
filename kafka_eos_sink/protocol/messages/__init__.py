# ruff: noqa: F403
"""The requests and responses of this client, one class each for all its versions.

Names are those of Kafka's definitions (``common/message/*.json`` in kafka-clients) in Python's spelling. A struct of
one message only is nested in it, such as `MetadataResponse.Topic`. The first version of each range is Kafka 3.0's.
A range ends before a change that is of no use to a writer, such as topic ids in Produce (KIP-516).
"""

from __future__ import annotations

from kafka_eos_sink.protocol.messages.cluster import *
from kafka_eos_sink.protocol.messages.records import *
from kafka_eos_sink.protocol.messages.transactions import *
from kafka_eos_sink.protocol.schema import registered

# In the order of their API keys; computed here, after the imports above have registered them.
REQUESTS = tuple(sorted(registered, key=lambda request: request.API_KEY))
