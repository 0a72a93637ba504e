"""The named steps of plan, task and commit at which tests kill a driver (`kafka_eos_sink.commit.failpoints`)."""

POINTS = (
    "plan.fenced",
    "plan.read",
    "plan.finished",
    "task.initialised",
    "task.writing",
    "task.flushed",
    "task.prepared",
    "commit.check",
    "commit.before_decision",
    "commit.decision_written",
    "commit.decided",
    "commit.between_ends",
    "commit.finished",
)
