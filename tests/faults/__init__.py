"""Faults between the client and real brokers."""
