"""Talking to brokers: connections, metadata, administration."""
