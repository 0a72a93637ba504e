"""The command line, ``kafka-eos``."""

EXIT_FAILURE = 1
