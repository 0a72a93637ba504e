"""What operators and monitoring do with writes, from outside them."""
