"""Two-phase commit on Kafka's transactions: theory of operation.

docs/internals/protocol.md specifies the protocol; I1 to I17 are its invariants. docs/internals/architecture.md shows the states of a
transaction and of a batch. This page says what can go wrong, by name.

WHAT THE LAYER DOES

W is a write id. Each task writes its rows in its own transaction (id W.<partition>.<slot>) and leaves it open. The
driver commits all of them or none by one record, the decision, in its own transaction (id W.driver).

  plan     take_over.py: list open transactions, fence W.driver, read the commit log, end the rest, finish decisions
  prepare  task.py: take its own identity, write the rows and a part record, check twice if the driver still waits
  decide   commit_batch.py, decide.py: check the prepared transactions, append the decision that lists them, commit
           W.driver, and read the COMMIT marker in the commit log
  finish   settle.py: EndTxn(commit) of each named transaction, then what became of each range (evidence.py); abort what
           hangs; restore.py: copy the rows that Kafka had aborted, and decide the copies
  done     log_access.py: a record that saves the next run the proof (log_view.py reads it, admission.py acts on it)
  people   resolve.py: an operator's decision; forget.py: remove a write

outcome.py alone judges a decided row, by the first marker of its producer that follows it in its own partition: that
marker never changes. evidence.py gathers what leaders and coordinators show. Procedures are generators over steps.py,
without socket or clock: tests/model runs this code, not a copy of it.

WHEN ROWS MAY BE WRITTEN AGAIN

A batch's version may be written again only if no driver can make its earlier rows visible any more: the log, read
after the fence, holds no committed decision of it, or one that it declares void, or an operator has resolved the version as
"rewrite". Every other decision is finished instead, by EndTxn and by copies, in the next run. Without a proof the
code fails loudly (DecisionPendingError) and keeps the evidence: it aborts no transaction that the decision names,
and leaves the decision in the log. The next run checks again. If no run can prove it (UNRESOLVED, LOST_PARTS, TOPIC_GONE),
an operator decides.

A range is copied only after its ABORT marker was seen: then no reader will ever see the original. Of a decided transaction
only what hangs is aborted. Nobody writes a COMMIT marker by hand.

HAZARDS

Comments name a hazard; its interleaving is only here. W.0.0 is a task's id, t-0 a partition of a data topic.

JOIN: a marker is missing on a partition, and the id's next transaction joins the one that is still open there.
  Kafka 4.3 and newer omit the marker of a partition without a leader, and call the transaction complete (KAFKA-20734).
  The leader adds records of a newer epoch to the open transaction of their producer id. One marker then ends both.
    1. The driver decides and commits W.0.0. Its COMMIT marker is missing on t-0; its coordinator reports
       CompleteCommit.
    2. A late attempt initialises W.0.0 and writes to t-0. Its records join the committed ones.
    3. It fails, or its timeout passes. The ABORT discards both, and readers pass: committed rows are lost.
  The other way round:
    1. An attempt under W.0.0 dies. Its ABORT marker is missing on t-0.
    2. A later attempt under W.0.0 writes the same rows to t-0. They join the rows of the first attempt.
    3. The driver decides the later attempt. One COMMIT marker shows both: each row twice.
  Guards: is_overtaken before the first row. check_prepared: each transaction begins where its task's records begin, and
    nowhere else. verify_visible: commit waits until readers pass, and then asks by still_holds whether a newer driver or
    a late attempt has discarded what hung. judged asks coordinators first: what a leader still holds after its coordinator has written
    all markers hangs. discard aborts it by the next transaction of its id. fresh_identity begins that one only if the
    id has none open. Then still_holds asks once more. What is discarded is copied. take_over ends other transactions
    before it finishes decisions. A decision whose own marker is missing is in-doubt (QueryState.undecided), and
    decide_again replaces it.
  I3, I6, I7. Mutations: "overtaken attempts continue", "overtaken attempts end themselves unchecked", "first offsets of
    the open transactions not compared", "a held range copied", "copied before the ABORT is seen", "nothing discarded",
    "others ended after the decisions", "a commit does not ask for a newer driver".

LATE ADD: below transaction.version 2, an AddPartitionsToTxn reopens a transaction that has ended.
  An EndTxn keeps the epoch there, so no coordinator can tell a late request from a new one. From version 2 on it
  cannot happen: each end raises the epoch.
    1. A task adds t-0 to its transaction. A copy of the request stays in the network.
    2. The driver decides and commits the transaction. Its marker is missing on t-0 (KAFKA-20734).
    3. The copy arrives. The coordinator opens the transaction again under its epoch, with t-0 alone.
    4. Its timeout or the next InitProducerId aborts it. The ABORT on t-0 discards committed rows, and readers pass.
  The same happens without a late request: someone aborts the transaction of an attempt that still writes. Its next
  AddPartitionsToTxn opens another one, with only the rows that follow. A decision on that one would lose the others.
  Guards: settle: below version 2 every commit judges its ranges, and copies what is discarded. There, a coordinator's
    CompleteAbort proves nothing (end_of). check_prepared compares partitions and first offsets. is_overtaken comes after
    the part record, an attempt's last request. take_over always lists. end_open spares only the identities of unfinished
    decisions, so it ends what a late request has opened under a decision that is done. runtime/requirements.py demands
    leaders that verify appends.
  I3, I7, I8. Mutations: "partitions of the open transaction not compared", "overtaken attempts check before their part
    record", "done decisions protect what is open under their identities", "a leader without verification".

LATE END: below transaction.version 2, an EndTxn without response commits a later transaction of the same epoch.
    1. The driver commits decision D1 in epoch 7. The connection breaks, and the resend succeeds; the first EndTxn is
       still in the network.
    2. Transactions of D1 were lost. The driver copies them, and appends D2 in epoch 7: a large one, in several
       records.
    3. The late EndTxn arrives after the first record of D2, and commits that record alone.
    4. The log holds a committed decision without its other records. Every later plan ends in COMMIT_LOG_CORRUPT.
  Guards: decide notes that a try had no response (DriverTransaction.late_end_possible), and require_free then writes
    no further decision. The next run's fence raises the epoch. A task's identity has one transaction only
    (fresh_identity).
  I12. Mutation: "copies in an epoch whose EndTxn has no response".

NEW LOG: the commit log was deleted and created again, or the job reads another one.
    1. Driver A decides a batch in the first log, commits one of its two transactions, and dies.
    2. Someone deletes the topic, or changes commit.log.topic. Driver B reads a log without a record of W.
    3. B lists A's open transaction, finds no decision that lists it, and aborts it: a decided part is lost.
    4. B writes the batch again: the rows of the committed transaction are there twice.
  Guards: log_standing.py: take_over refuses, before it fences, the open transactions of a write that its log does not
    know, and a log without a record of W if W.driver's coordinator or the history knows W. Every plan leaves a barrier
    with the topic id of its log, and Fetch is by topic id (read_on, read_to_barrier). A decision whose offset is lower
    than the plan's barrier, its part records or the decision that it repeats is refused. _restore decides copies in the
    log of their decision only, and abort reads the plan's log. require_whole: a log begins at offset 0. admit: the
    versions of a stream have no gap. The first plan of a write id appends its barrier before its first InitProducerId,
    so a coordinator that knows W.driver, next to a log without a record of W, proves that the log is another one.
  I6, I16, I17. Mutations: "an ignored gap in the versions of a stream", "no barrier before the first fence", "the log
    not read again before it counts as lost". The simulated log is never created again, so the other guards have tests
    in tests/unit/commit/: test_lost_log.py, test_restore.py, test_decide.py, test_abort.py.

PAUSE: a driver or an attempt sleeps, and its successor has gone on.
    1. Driver A appends its decision, and sleeps before its EndTxn.
    2. Driver B takes over. It finds no committed decision, ends what A's tasks prepared, and writes the batch again.
    3. A wakes up. If it could still decide, it would find its transactions lost, and copy them: each row twice.
  An attempt:
    1. It sleeps before its first row. The driver decides the batch with another attempt, and finds no losing attempt.
    2. It wakes up, and writes in a transaction that nobody ends: readers wait for its timeout or the next run. With
       JOIN, rows are lost.
  Guards: A's EndTxn cannot pass B's InitProducerId of W.driver. The order list, fence, read: a later list would hold a
    newer driver's transactions, an earlier read would miss A's decision. is_overtaken before the first row and after
    the part record; _losers after W.driver's append and before its EndTxn; sweep, only while still_holds. require_free
    before copies. fresh_identity: no two attempts share an epoch. A done record counts for its own nonce only
    (has_done_record). A commit that takes longer than PROMPT_MS judges its ranges, because a person may have aborted by
    hand what waited for it.
  What is left: an attempt that sleeps before InitProducerId can abort a decided transaction. Recovery copies its rows.
  I2, I3, I8, I11. Mutations: "no fence", "read before fence", "list after fence", "copies without a fence", "overtaken
    attempts stay open", "losing attempts searched before the decision", "sweep of a write id fenced by a newer
    driver", "producer epoch reused", "the look skipped after a pause between check and EndTxn", "the look skipped after
    a pause behind EndTxn".

BLIND: a range is gone (retention, a deleted topic) or cannot be read, so what readers see proves nothing.
    1. A decided batch has two transactions. The first one is committed, and consumers have read its rows.
    2. The second one's timeout passes before its EndTxn. Retention removes its records: their timestamps are old.
    3. Recovery finds fewer records than the decision names. If it decided what is left, rows would be lost in silence.
       If it called the batch void, the rows of the first transaction would be written twice.
  Nor does a range that is gone prove an abort: readers may have seen its rows before.
  Guards: _sort_copies counts the records. _restore copies all or none: if records are gone, the batch is void if readers
    saw no row of the decision, and otherwise LOST_PARTS. judge: a range that is gone counts as committed if an EndTxn
    was accepted, if the coordinator reports exactly this end, or if another range of its transaction is visible and
    none is discarded or held; otherwise UNRESOLVED. A copy takes another slot (_begin_copy), because InitProducerId erases that
    report. A discard erases it as well, and lets the cleaner remove the rows, so _noted first writes down which ranges
    no reader has seen (PreparedTransaction.ended), and judged_now ignores a note that a COMMIT marker contradicts. look_at
    asks leaders of ranges that are gone whether they hang. A driver that a newer one has replaced believes no range
    that is gone (still_holds). A topic without Read, or without a leader, raises. If another producer's open
    transaction holds back the last stable offset, the first marker after the range counts (look_at).
  I6, I10, I13. Mutations: "counts of a copy not compared", "parts copied although others are given up", "a gone range
    counted as seen", "a copy under the id of the lost transaction", "a visible range copied", "visible ranges omitted
    from the next decision", "rewrite of a version that recovery could not finish", "discarded before it is written
    down", "a gone range counted as seen by a replaced driver".
"""
