"""The faults that the producer machine may meet: every loss, and every error code that the table of reactions names for an API."""

from __future__ import annotations

from typing import Any, NamedTuple

from faults.fault_proxy import (
    Action,
    Answer,
    AnswerAfter,
    Cut,
    Delay,
    DeliverLate,
    LoseRequest,
    LoseResponse,
    Throttle,
)
from hypothesis import strategies as st

from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.reactions import REACTIONS, Reaction, reaction
from kafka_eos_sink.protocol.schema import Request

from .simulated_network import Meanwhile

Api = type[Request[Any]]
LATER = "later"
"""The gate behind which a request waits that was swallowed."""
UNKNOWN_CODE = 12_345
TRY_AGAIN = (Reaction.RETRY, Reaction.REFRESH_METADATA, Reaction.FIND_COORDINATOR)
FOR_THE_CALL = 1_000
"""As often as it is asked for while the call lasts."""

LOSSES: tuple[Action, ...] = (
    LoseRequest(),
    LoseResponse(),
    LoseRequest(close=False),
    LoseResponse(close=False),
    Cut("request"),
    Cut("response"),
)
DELAYS: tuple[Action, ...] = (Delay(20), Delay(20, "response"), Delay(800), Delay(800, "response"))
"""`request.timeout.ms` is 500: the long ones are given up, and arrive all the same."""
MEANWHILE = (
    "take over",
    "time out",
    "move leaders",
    "move transaction coordinator",
    "move group coordinator",
    "restart 1",
)


class Fault(NamedTuple):
    """What the next requests of an API meet."""

    api: Api
    action: Action | Meanwhile
    times: int = 1

    def __repr__(self) -> str:
        times = "" if self.times == 1 else f", {self.times}"
        return f"Fault(m.{self.api.__name__}, {self.action}{times})"


def codes_of(api: Api) -> tuple[int, ...]:
    """All codes with a row for this API, and two that have none."""
    named = [code.value for of, code in REACTIONS if of is api]
    return (*named, ErrorCode.UNKNOWN_SERVER_ERROR.value, UNKNOWN_CODE)


def is_honest(api: Api, action: Action | Meanwhile) -> bool:
    """Whether a broker may do that: none says that it has written what it has not, or refuses what it has done for good."""
    match action:
        case Answer(code=code):
            return not (api is m.ProduceRequest and code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        case AnswerAfter(code=code) if api is m.AddPartitionsToTxnRequest:
            return reaction(api, code) in TRY_AGAIN
    return True


def is_survived(api: Api, action: Action | Meanwhile) -> bool:
    """Whether this passes by itself, so that no caller should hear of it."""
    match action:
        case Answer(code=code) | AnswerAfter(code=code):
            return api is m.MetadataRequest or reaction(api, code) in TRY_AGAIN
        case Meanwhile(what=what):
            return what not in ("take over", "time out")
    return True


def actions_of(api: Api) -> tuple[Action | Meanwhile, ...]:
    if api is m.MetadataRequest:
        return (*LOSSES, *DELAYS, Answer(ErrorCode.LEADER_NOT_AVAILABLE.value))
    coded = [make(code) for code in codes_of(api) for make in (Answer, AnswerAfter)]
    return tuple(
        action
        for action in (*LOSSES, *DELAYS, DeliverLate(LATER), Throttle(40), *coded, *map(Meanwhile, MEANWHILE))
        if is_honest(api, action)
    )


def _fault(api: Api) -> st.SearchStrategy[Fault]:
    plain = [action for action in actions_of(api) if not isinstance(action, Answer | AnswerAfter)]
    coded = [action for action in actions_of(api) if isinstance(action, Answer | AnswerAfter)]
    passing = [action for action in coded if is_survived(api, action)]
    ending = [action for action in coded if not is_survived(api, action)] or passing
    times = [1, 1, 1, 1, 1, 1, 1, 2, 3]
    if api is not m.MetadataRequest:
        times.append(FOR_THE_CALL)  # a topic that was once not found for max.block.ms is not looked for again
    # Codes that end an attempt are many, and little comes after them.
    kinds = st.sampled_from([plain, plain, passing, passing, ending])
    return st.builds(Fault, st.just(api), kinds.flatmap(st.sampled_from), st.sampled_from(times))


def faults_of(*apis: Api) -> st.SearchStrategy[tuple[Fault, ...]]:
    """None to three faults for requests of these APIs; mostly none or one."""
    one = st.sampled_from(apis).flatmap(_fault)
    return st.one_of(st.just(()), st.tuples(one), st.tuples(one, one), st.tuples(one, one, one))
