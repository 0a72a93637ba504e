"""What operators and monitoring do with writes, beside the way of a write."""
