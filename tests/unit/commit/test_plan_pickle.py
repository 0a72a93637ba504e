"""Plans and messages travel between processes that may run different versions of the sink, as in a rolling upgrade."""

from __future__ import annotations

import base64
import pickle
from dataclasses import fields, is_dataclass, replace
from typing import Any
from uuid import UUID

import pytest

from kafka_eos_sink.commit import values
from kafka_eos_sink.commit.values import (
    BatchIdentity,
    Decision,
    DecisionStatus,
    OffsetRange,
    Plan,
    PreparedTransaction,
    SettledDecision,
    TaskIdentity,
    TaskMessage,
    TaskOutcome,
    Write,
)
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.pickling import unpickled
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.runtime.at_least_once import RowsWritten

DRIVER = ProducerIdentity(transactional_id="w.driver", producer_id=7, producer_epoch=3, transaction_version=2)
SETTLED = SettledDecision(
    decision=Decision(
        write_id="w",
        query_id="batch",
        version=3,
        nonce="m~1",
        driver=DRIVER,
        topic="orders",
        schema="value binary",
        offsets_hash=None,
        transactions=(),
        foreach_call="app/1/4/3",
    ),
    status=DecisionStatus.FINISHED,
)
PLAN = Plan(
    write=Write("w", "ledger", "--bootstrap-servers b1:9092"),
    nonce="n",
    driver=replace(DRIVER, producer_epoch=5),
    started_ms=1_700_000_000_000,
    transaction_timeout_ms=900_000,
    log_offset=42,
    decisions=(SETTLED,),
    log_id=UUID(int=11),
    plan_ms=12,
    attempts_ended=1,
    cluster_id="c",
)
MESSAGE = TaskMessage(
    plan=PLAN,
    batch=BatchIdentity(query_id="batch", version=4, topic=None, schema="value binary", offsets_hash="h"),
    task=TaskIdentity(partition=1, attempt_number=0, task_attempt_id=9),
    outcome=TaskOutcome.PREPARED,
    prepared=PreparedTransaction(
        partition=1,
        identity=ProducerIdentity(transactional_id="w.1.1", producer_id=8, producer_epoch=0, transaction_version=2),
        part_offset=43,
        rows=10,
        offsets=(OffsetRange(topic="orders", partition=2, first_offset=100, last_offset=109),),
    ),
    write_ms=5,
    application_id="app-1",
)
STORED = base64.b85decode(
    "fCQCc1poj50001t7i(c=YhhnyZ*yOBX>MySaA{*}Y-w(1l#B^=Zg6R1Yiwm?l#`T<9BW}_YhhnyZ*yOBX>MySV{dJ3X>=}jVQh6}bCiq(P;6mt"
    "l#`Twlqie^cXDZTWt3<FXakG|S8{1|Wt5YYeUvDS0%>HFi~)C)j0tRSXJ2%0aA{+dj0S9FWM^e^l#B{vZ*Fd7V{~b6Zj_80EiGbiZ*+5Xa$#^S"
    "b7gXNWpZ;MVlg^7FgY@mb%vBul#B&#Z*F5{l#Bsxl#B*sa%pyDa+GKSj38@aW@}+zWp8s|b7^jCE^u;hbZ=vCY%XbJWo~q7ba|AF5KwY&WOZX@"
    "a!F)mZggpMd6biseUvDS5Oi{3ZgXK{bZKvHVQgP%WR#2ucP?adX?A6Dl#B~-a&KgHV`Xw*X=Id32aFDIa&KgHV`Xw*WpHm}Xp~C@j1zQnVQzC_"
    "V{~b6ZeMm~a&u{KZj?&`b%vBul#B{<bYXIIWn^D%bCik(0BGgUivf%lbaG*Cb75n2X>V>{bZKp6Z*_EEZF7`Lpt}tKj0$XTXJ2n-W^-k9luIg%"
    "31nqsX>)0BZgZ4q0%!w_4^w4ybZlj0L}g=Xb7^mGl#`Twlqie{WMyM%b7^mGlxPBI1B?hnWn*b`X>V?nlazgwD2xbqa%psBUuk5NXbg-9adl;K"
    "d0%N{l#B&pVRU0?l#B;<WpZ<AZ*G)J185VB18sgWlxP)b0%#b0lqhH#Xd7r8O9yBjO9N;gO9FL<lv0$81$1w4X=9X(25)j?WpZ<rj0SUKXk~3-"
    "l#C2^VQh6}AYy55VRCttj0|sPW^-k9b6;p-b7+)Kj0|*gVQzC_V{~b6ZgZ3=j0$pPb8l>QbZKvHlunEcW^Zz3VPj}tV_|G;l#B^saBwd%FElSR"
    "ly!!bQk0Aab97;Jb#s(x1B?ztWn*b`X>V>*bYXOLbCi>mj0k3FZfSF9Wn`3vlv0#+hLlp2g_Mj2Y;R{@X=Id)1a)<3WR#2qRaHqul#`Sxfs}oe"
    "j00(Ibd*aAb7G7KaBN|2Uu|=gOAL$-VRUq5ZE$pRUuAA&Wn`2~0gMV`Y;|*VWpZC>WR#2nW0ZA<lv0#v0%!w_3shlqYfWWyb75y?l#`Twlqie@"
    "aBN|2lxS3FE@%R11B?wqVRU0?Nn~YibZK;Xl#`TwlqhH|Xf9|kO9W^%PG~l0H)uGF0cezr7H@7}V`yb#YjAIAZggLAZ)|L0VPk8Qj09$3X>62?"
    "33GIEWnpb;ZfBH<Xgf}IhLlp2j0ALHb8D1n0%!w_3{+urYe{5fZggpMd6biseUvDS32<R@bZK;HZ*G)J0gMh|baZ8HaCBd8b!}p0a+FH|j1P2S"
    "b8BB=baZ8HaCBd3WRyz@b%vBul#B;&b#!BIZDo{b1B?q)VRLIwb#!BIZDo{`l#B>)a%FH~a%E(cg_Kg1Xl`f%XakHBP;zB(VRB_;RB~Z%b75n2"
    "X>V?nlazgwC}?I&0gMP~WMyu2X>@s%XaZ;$eUvC@8jJ;ZE-@}KlxQ4F2xuKk0B9ad0(FLzQk0AfaA9(EUvFk+b7gdtODl{7a&LEYluHVX2XAI("
    "b7gdMlxPBI1B?q#W@d9`bW&k%XJwR=lzo&aXf$XwXl6?Sj0|RJa&vTFZ)Rq5WptEFWQ+@JVRLj}Z)Rq5WptEFZFPo}Qj~?1j0SLWZ+2yFl!<kQ"
    "lv0$84R>;BbaZ8IUt)Q5Wpk8G=mU%hcXDZTWnXP`luHGS4q<R`Y-wX*bZKvHUuk5Nj0ItEa4j*Eb%vBul!lZp"
)
"""``pickle.dumps((PLAN, MESSAGE), protocol=4)`` of the first version with these fields."""


class Sent:
    """Pickles as a value of another version of the sink: without the ``lacking`` fields of a type, or with one ``more``."""

    def __init__(self, value: Any, *lacking: str, **more: Any) -> None:
        _, (self.kind, named) = value.__reduce__()
        self.named = {name: each for name, each in named.items() if name not in lacking} | more

    def __reduce__(self) -> Any:
        return unpickled, (self.kind, self.named)


def received(sent: Any) -> Any:
    return pickle.loads(pickle.dumps(sent))


def test_stored_pickle_stays_readable() -> None:
    """A change of a name or a type that travels breaks the queries that run while the package is upgraded."""
    assert pickle.loads(STORED) == (PLAN, MESSAGE)
    assert received((PLAN, MESSAGE)) == (PLAN, MESSAGE)


@pytest.mark.parametrize("value", [PLAN, MESSAGE, PLAN.write, SETTLED, DRIVER], ids=lambda value: type(value).__name__)
def test_field_of_a_newer_version_is_ignored(value: Any) -> None:
    assert received(Sent(value, added_later={"a": 1})) == value


def test_field_that_an_older_version_lacks_has_its_default() -> None:
    assert received(Sent(PLAN, "cluster_id", "plan_ms")) == replace(PLAN, cluster_id=None, plan_ms=None)
    inside = replace(MESSAGE, plan=Sent(PLAN, "cluster_id"), batch=Sent(MESSAGE.batch, "streaming", "foreach_call"))
    assert received(inside) == replace(MESSAGE, plan=replace(PLAN, cluster_id=None))


def test_field_without_default_that_is_missing_is_an_error() -> None:
    with pytest.raises(
        ConfigurationError, match=r"DIFFERENT_VERSIONS\] a Plan .* lacks nonce, log_offset: .* Install the same"
    ):
        received(Sent(PLAN, "log_offset", "nonce"))


def test_every_value_of_the_protocol_pickles_its_fields_by_name() -> None:
    """By position, a field that is added later makes all pickles of the type unreadable."""
    travel = [each for each in vars(values).values() if isinstance(each, type) and is_dataclass(each)]
    for kind in (*travel, RowsWritten):
        if kind.__name__ in ("Run", "Hanging", "ResolveRequest"):  # stay in their process
            continue
        made = object.__new__(kind)
        for each in fields(kind):
            object.__setattr__(made, each.name, None)
        function, (of, named) = made.__reduce__()  # type: ignore[misc]
        assert (function, of, list(named)) == (unpickled, kind, [each.name for each in fields(kind)])
