"""The idempotent and transactional producer, one per task attempt."""
