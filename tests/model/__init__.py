"""The commit protocol, run through every interleaving that fits against a simulated cluster and a simulated Spark."""
