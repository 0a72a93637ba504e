"""The command line, ``kafka-eos``."""
