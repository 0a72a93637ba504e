"""``make demo``: real flights, written exactly once while processes are killed."""
