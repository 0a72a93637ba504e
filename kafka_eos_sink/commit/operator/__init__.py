"""What an operator decides after a failure that the driver could not settle: resolve, and repair of missing markers."""
