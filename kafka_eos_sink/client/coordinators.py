"""Which broker coordinates a transactional id or a group (features.md 10)."""

from __future__ import annotations

from collections.abc import Iterable

from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.retry import Retry, ask_any_node
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.protocol.messages import FindCoordinatorRequest
from kafka_eos_sink.protocol.reactions import Reaction, reaction

GROUP = 0
TRANSACTION = 1

_KEYS_PER_REQUEST = 1_000


class Coordinators:
    """Finds coordinators, many keys per request (KIP-699), and remembers those of transactional ids."""

    def __init__(self, client: NetworkClient) -> None:
        self.client = client
        self._coordinators: dict[str, int] = {}

    def find_coordinators(self, transactional_ids: Iterable[str], deadline_ms: int) -> dict[str, int]:
        """Transactional id -> node id of its transaction coordinator; cached until `forget`.

        The first use of transactions in a cluster creates `__transaction_state`, which takes seconds. Raises
        AuthorizationError, BrokerUnavailableError.
        """
        ids = list(dict.fromkeys(transactional_ids))
        retry = Retry(self.client, _what(ids), deadline_ms)
        while refused := self._look_up([key for key in ids if key not in self._coordinators], retry):
            for key, code in refused.items():
                if code is not None:
                    retry.answered(FindCoordinatorRequest, code, f"FindCoordinator of transactional id {key!r}")
            retry.pause()
        return {key: self._coordinators[key] for key in ids}

    def find_group_coordinator(self, group: str, deadline_ms: int) -> int:
        """The node id of the group's coordinator; not cached. Raises AuthorizationError, BrokerUnavailableError."""
        retry = Retry(self.client, f"FindCoordinator of group {group!r}", deadline_ms)
        request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=(group,))
        while True:
            (found,) = ask_any_node(self.client, request, retry).coordinators
            if not found.error_code:
                self.client.learn_broker(found.node_id, found.host, found.port)
                return int(found.node_id)
            retry.answered(FindCoordinatorRequest, found.error_code, None, found.error_message)
            retry.pause()

    def forget(self, transactional_ids: Iterable[str]) -> None:
        """Look the coordinators of these ids up again at their next use."""
        for transactional_id in transactional_ids:
            self._coordinators.pop(transactional_id, None)

    def _look_up(self, keys: list[str], retry: Retry) -> dict[str, int | None]:
        """One try for keys that are not cached: those without success, with their code, None where no answer came."""
        if not keys:
            return {}
        missing: dict[str, int | None] = dict.fromkeys(keys)
        node_id = self.client.any_node(retry.deadline_ms)
        requests = [
            FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=tuple(keys[at : at + _KEYS_PER_REQUEST]))
            for at in range(0, len(keys), _KEYS_PER_REQUEST)
        ]
        for result in self.client.call_all([(node_id, request, None) for request in requests], retry.deadline_ms):
            if isinstance(result, KafkaEosError):
                retry.failed(result)
                continue
            for found in result.coordinators:
                if found.key not in missing:
                    continue
                if found.error_code:
                    missing[found.key] = found.error_code
                    continue
                self.client.learn_broker(found.node_id, found.host, found.port)
                self._coordinators[found.key] = found.node_id
                del missing[found.key]
        return missing


def is_hopeless(code: int | None) -> bool:
    """Whether no repetition of the look-up can mend this code."""
    return code is not None and reaction(FindCoordinatorRequest, code) is not Reaction.RETRY


def _what(ids: list[str]) -> str:
    return f"FindCoordinator of transactional id {ids[0]!r}" + (f" and {len(ids) - 1} more" if len(ids) > 1 else "")
