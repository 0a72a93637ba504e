"""A campaign of many faults at once against everything that writes, with a checker that uses nothing of the product."""
