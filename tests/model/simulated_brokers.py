"""Two brokers that answer Kafka's requests: the simulated cluster (`simulated_cluster.py`) behind leaders and coordinators that move.

What a producer can meet is here: brokers that are not (any more) who is asked for, idempotent producers without a transaction,
the five batches that a leader recognises.
"""

from __future__ import annotations

from typing import Any

from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.record_batch import RecordBatch, read_record_batches

from . import simulated_cluster as kafka
from .simulated_broker_state import ADDRESSES, TOPIC, BrokerState, Written
from .simulated_cluster import BLOCKED, Identity

REMEMBERED_BATCHES = 5


class SimulatedBrokers(BrokerState):
    """See the module's text."""

    def answer(self, node: int, version: int, request: Any) -> Any:
        """What the broker `node` answers, and what comes of the request."""
        response = self._answer(node, version, request)
        self.write_markers_soon()
        return response

    def _answer(self, node: int, version: int, request: Any) -> Any:
        match request:
            case m.ApiVersionsRequest():
                return self._api_versions()
            case m.MetadataRequest():
                return self._metadata(node, request)
            case m.FindCoordinatorRequest():
                return self._find_coordinator(request)
            case m.InitProducerIdRequest():
                return self._init_producer_id(node, request)
            case m.AddPartitionsToTxnRequest():
                return self._add_partitions(node, request)
            case m.EndTxnRequest():
                return self._end_txn(node, version, request)
            case m.DescribeTransactionsRequest():
                return self._describe_transactions(node, request)
            case m.ProduceRequest():
                return self._produce(node, version, request)
            case m.DescribeConfigsRequest(resources=resources):
                # The client wants to know why there is no coordinator, and may not.
                hidden = ErrorCode.CLUSTER_AUTHORIZATION_FAILED.value
                return m.DescribeConfigsResponse(
                    throttle_time_ms=0,
                    results=tuple(
                        m.DescribeConfigsResponse.Result(
                            error_code=hidden,
                            error_message=None,
                            resource_type=each.resource_type,
                            resource_name=each.resource_name,
                            configs=(),
                        )
                        for each in resources
                    ),
                )
        raise AssertionError(f"no broker here answers {type(request).__name__}")

    def _api_versions(self) -> m.ApiVersionsResponse:
        return m.ApiVersionsResponse(
            error_code=0,
            api_keys=tuple(
                m.ApiVersionsResponse.ApiVersion(api_key=api.API_KEY, min_version=0, max_version=api.VERSIONS[-1])
                for api in m.REQUESTS
            ),
            finalized_features_epoch=1,
            finalized_features=(
                m.ApiVersionsResponse.FinalizedFeature(
                    name="transaction.version", max_version_level=self.version, min_version_level=self.version
                ),
            ),
        )

    def _metadata(self, node: int, request: m.MetadataRequest) -> m.MetadataResponse:
        leaders = self.lagging.get(node, self.leaders)
        return m.MetadataResponse(
            throttle_time_ms=0,
            brokers=tuple(
                m.Broker(node_id=each, host=host, port=port)
                for each, (host, port) in ADDRESSES.items()
                if each not in self.down
            ),
            cluster_id="simulated",
            controller_id=1,
            topics=tuple(
                m.MetadataResponse.Topic(
                    error_code=ErrorCode.NONE if topic.name == TOPIC else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    name=topic.name,
                    partitions=tuple(
                        m.MetadataResponse.Topic.Partition(
                            error_code=0,
                            partition_index=index,
                            leader_id=leader,
                            leader_epoch=epoch,
                            replica_nodes=(1, 2),
                            isr_nodes=(1, 2),
                            offline_replicas=(),
                        )
                        for index, (leader, epoch) in enumerate(leaders if topic.name == TOPIC else ())
                    ),
                )
                for topic in request.topics or ()
            ),
        )

    def _find_coordinator(self, request: m.FindCoordinatorRequest) -> m.FindCoordinatorResponse:
        node = self.coordinators[request.key_type]
        host, port = ADDRESSES[node]
        return m.FindCoordinatorResponse(
            throttle_time_ms=0,
            coordinators=tuple(
                m.FindCoordinatorResponse.Coordinator(
                    key=key, node_id=node, host=host, port=port, error_code=0, error_message=None
                )
                for key in request.coordinator_keys
            ),
        )

    def _init_producer_id(self, node: int, request: m.InitProducerIdRequest) -> m.InitProducerIdResponse:
        if request.transactional_id is None:
            return m.InitProducerIdResponse(
                throttle_time_ms=0, error_code=0, producer_id=next(self.idempotent_ids), producer_epoch=0
            )
        if node != self.coordinators[1]:
            return m.InitProducerIdResponse(throttle_time_ms=0, error_code=ErrorCode.NOT_COORDINATOR, producer_epoch=-1)
        self.taken_over += 1
        self.cluster, given = kafka.init_producer_id(
            self.cluster, request.transactional_id, request.transaction_timeout_ms
        )
        if given is BLOCKED:
            return m.InitProducerIdResponse(
                throttle_time_ms=0, error_code=ErrorCode.CONCURRENT_TRANSACTIONS, producer_epoch=-1
            )
        return m.InitProducerIdResponse(throttle_time_ms=0, error_code=0, producer_id=given[0], producer_epoch=given[1])

    def _add_partitions(self, node: int, request: m.AddPartitionsToTxnRequest) -> m.AddPartitionsToTxnResponse:
        identity = Identity(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            0,
        )
        return m.AddPartitionsToTxnResponse(
            throttle_time_ms=0,
            results_by_topic_v3_and_below=tuple(
                m.AddPartitionsToTxnResponse.Topic(
                    name=topic.name,
                    results_by_partition=tuple(
                        m.AddPartitionsToTxnResponse.Topic.Partition(
                            partition_index=index, partition_error_code=self._add(node, identity, index)
                        )
                        for index in topic.partitions
                    ),
                )
                for topic in request.v3_and_below_topics
            ),
        )

    def _add(self, node: int, identity: Identity, partition: int) -> int:
        if node != self.coordinators[1]:
            return ErrorCode.NOT_COORDINATOR
        self.cluster, error = kafka.add_partition(self.cluster, identity, partition)
        return ErrorCode.CONCURRENT_TRANSACTIONS if error is BLOCKED else int(error)

    def _end_txn(self, node: int, version: int, request: m.EndTxnRequest) -> m.EndTxnResponse:
        if node != self.coordinators[1]:
            return m.EndTxnResponse(throttle_time_ms=0, error_code=ErrorCode.NOT_COORDINATOR)
        identity = Identity(
            request.transactional_id, request.producer_id, request.producer_epoch, 2 if version >= 5 else 0
        )
        self.cluster, ended = kafka.end_txn(self.cluster, identity, request.committed, version)
        if ended is BLOCKED:
            return m.EndTxnResponse(throttle_time_ms=0, error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        return m.EndTxnResponse(throttle_time_ms=0, error_code=ended[0], producer_id=ended[1], producer_epoch=ended[2])

    def _describe_transactions(
        self, node: int, request: m.DescribeTransactionsRequest
    ) -> m.DescribeTransactionsResponse:
        (transactional_id,) = request.transactional_ids
        found = self.cluster.transaction(transactional_id)
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if found is None else ErrorCode.NONE
        return m.DescribeTransactionsResponse(
            throttle_time_ms=0,
            transaction_states=(
                m.TransactionState(
                    error_code=code if node == self.coordinators[1] else ErrorCode.NOT_COORDINATOR,
                    transactional_id=transactional_id,
                    transaction_state="" if found is None else found.state,
                    transaction_timeout_ms=0 if found is None else found.timeout_ms,
                    transaction_start_time_ms=-1,
                    producer_id=-1 if found is None else found.producer_id,
                    producer_epoch=-1 if found is None else found.producer_epoch,
                    topics=(),
                ),
            ),
        )

    # Produce

    def _produce(self, node: int, version: int, request: m.ProduceRequest) -> m.ProduceResponse:
        moved = False
        topics = []
        for topic in request.topic_data:
            answers = []
            for data in topic.partition_data:
                leader, epoch = self.leaders[data.index]
                hint = m.LeaderIdAndEpoch()
                code, offset = int(ErrorCode.NOT_LEADER_OR_FOLLOWER), -1
                if leader == node:
                    (batch,) = read_record_batches(bytes(data.records or b""))
                    code, offset = self._append(request.transactional_id or "", version, data.index, batch)
                elif version >= 10:
                    moved, hint = True, m.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
                answers.append(
                    m.ProduceResponse.Topic.Partition(
                        index=data.index, error_code=code, base_offset=offset, current_leader=hint
                    )
                )
            topics.append(m.ProduceResponse.Topic(name=topic.name, partition_responses=tuple(answers)))
        endpoints = tuple(m.Broker(node_id=each, host=host, port=port) for each, (host, port) in ADDRESSES.items())
        return m.ProduceResponse(responses=tuple(topics), node_endpoints=endpoints if moved else ())

    def _append(self, transactional_id: str, version: int, partition: int, batch: RecordBatch) -> tuple[int, int]:
        """(error code, base offset) of one batch."""
        identity = Identity(transactional_id, batch.producer_id, batch.producer_epoch, 2 if version >= 12 else 0)
        this = Written(batch.producer_id, batch.producer_epoch, batch.base_sequence, len(batch.records))
        written = [each for each in self.written[partition] if each[:2] == this[:2]]
        sequence = this.base_sequence
        if this not in written[-REMEMBERED_BATCHES:] and any(
            entry.identity == this[:2] and entry.sequence == sequence for entry in self.log(partition)
        ):
            # A leader compares first and last number of the batches it remembers; all else is merely not the next number.
            sequence = (sequence + kafka.SEQUENCES // 2) % kafka.SEQUENCES
        before = len(self.cluster.logs[partition])
        rows = tuple((None, int(record.value or b"")) for record in batch.records)
        self.cluster, answered = kafka.produce(self.cluster, identity, partition, sequence, rows)
        if answered is BLOCKED:
            return ErrorCode.CONCURRENT_TRANSACTIONS, -1
        if len(self.cluster.logs[partition]) > before:
            self.written[partition].append(this)
        return int(answered[0]), int(answered[1])
