"""What `shown_output` accepts as the output that a page shows, and what it does not."""

from __future__ import annotations

import pytest

from shown_output import assert_shows

PRINTED = """
2026-11-27 07:46:46 UTC: 1 write, 2 open transactions
write id                          version  state      finished   rows  partition: offsets
kafka-eos/nightly-orders/orders  20261121  finished  0.2 s ago  1,000  orders-0: 353 to 703

Committed by kafka-eos-6c1f0a52-9d0e-4a57-8a0e-1b2c3d4e5f60. To finish what it left, run: kafka-eos recover --bootstrap-servers \
127.0.0.1:31355 --write-id W
"""


def test_other_numbers_and_widths_are_the_same_output() -> None:
    page = """
2026-11-21 02:33:10 UTC: 1 write, 2 open transactions
write id                          version  state          finished   rows  partition: offsets
kafka-eos/nightly-orders/orders  20261121  finished  3 min 2 s ago  4,000  orders-0: 12 to 99

Committed by kafka-eos-b119f28e-40dc-420f-9ae2-817389028d00.
To finish what it left, run: kafka-eos recover --bootstrap-servers localhost:9092 --write-id W
"""
    assert_shows(page, PRINTED, "page")


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("state ", "status"),
        ("2 open", "3 open"),
        ("20261121", "20261122"),
        ("orders-0", "orders-1"),
        ("\n\n", "\n"),
        ("write id    ", ""),
        ("1 write, 2 open", "1 write,\n2 open"),
        ("To finish", "Finish"),
    ],
)
def test_other_words_columns_or_lines_are_another_output(printed: str, shown: str) -> None:
    assert printed in PRINTED
    with pytest.raises(AssertionError, match="page is not what is printed"):
        assert_shows(PRINTED.replace(printed, shown), PRINTED, "page")
