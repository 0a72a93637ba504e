# ruff: noqa: F403
"""This client's requests and responses, one class for all versions of a message.

Classes and fields have the names of Kafka's definitions (``common/message/*.json`` in kafka-clients) in Python's spelling.
A message nests the structs that only it uses, such as ``MetadataResponse.Topic``. Each range of versions starts with Kafka
3.0's. A range ends before a change that a writer does not need, such as topic ids in Produce (KIP-516).
"""

from __future__ import annotations

from kafka_eos_sink.protocol.messages.cluster import *
from kafka_eos_sink.protocol.messages.records import *
from kafka_eos_sink.protocol.messages.transactions import *
from kafka_eos_sink.protocol.schema import registered

# In the order of API keys. The imports above must come first: they register the requests.
REQUESTS = tuple(sorted(registered, key=lambda request: request.API_KEY))
