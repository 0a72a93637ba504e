"""The idempotent and transactional producer: one task attempt, one transaction, one producer."""
