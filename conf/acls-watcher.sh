#!/bin/sh
# Prints the kafka-acls.sh commands that give a principal the rights of a watcher, and no others. The principal can then run
# kafka-eos status, top, history and metrics, and it cannot change anything. Read the commands, then run them:
#
#   PRINCIPAL=User:watcher TOPICS=orders conf/acls-watcher.sh | sh -e
#
# Set these variables, or keep their defaults. Separate several topics by spaces.
#   BOOTSTRAP_SERVERS   the value of KAFKA_EOS_BOOTSTRAP_SERVERS, else localhost:9092
#   COMMAND_CONFIG      client properties of an administrator, for --command-config; none
#   PRINCIPAL           User:watcher
#   TOPICS              the topics with rows; orders
#   READ_ROWS           yes: also kafka-eos audit, and kafka-eos history of one row, which read rows; no
#   PREFIX              the option transactional.id.prefix, in which a / is written %2F; kafka-eos.
#                       '*' also shows other programs that block consumers
#   COMMIT_LOG_TOPIC    the option commit.log.topic; __kafka_eos_commits
#   HISTORY_TOPIC       the option history.topic, empty for none; __kafka_eos_history
#   GROUP               the option source.offsets.group, for kafka-eos offsets; none
#   SOURCE_TOPICS       the topics that this group reads; none
#
# What each right is for: docs/access.md
set -euf

quoted() {
    case $1 in
        *[!A-Za-z0-9_.:,=/@%-]*) printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")" ;;
        *) printf %s "$1" ;;
    esac
}

grant() {
    printf 'kafka-acls.sh --bootstrap-server %s' "$(quoted "$servers")"
    [ -z "${COMMAND_CONFIG:-}" ] || printf ' --command-config %s' "$(quoted "$COMMAND_CONFIG")"
    printf ' --add --allow-principal %s \\\n   ' "$(quoted "$principal")"
    printf ' %s' "$@"
    printf '\n'
}

servers=${BOOTSTRAP_SERVERS:-${KAFKA_EOS_BOOTSTRAP_SERVERS:-localhost:9092}}
principal=${PRINCIPAL:-User:watcher}
prefix=${PREFIX:-kafka-eos}
log=$(quoted "${COMMIT_LOG_TOPIC:-__kafka_eos_commits}")
history=${HISTORY_TOPIC-__kafka_eos_history}
case ${READ_ROWS:-no} in
    yes) rows=Read ;;
    no) rows=Describe ;;
    *) echo "READ_ROWS must be yes or no" >&2; exit 2 ;;
esac

if [ "$prefix" = '*' ]; then
    grant --operation Describe --transactional-id "'*'"
else
    grant --operation Describe --transactional-id "$(quoted "$prefix")" --resource-pattern-type prefixed
fi
for topic in ${TOPICS:-orders}; do
    grant --operation "$rows" --topic "$(quoted "$topic")"
done
grant --operation Read --topic "$log"
if [ -n "$history" ]; then
    grant --operation Read --topic "$(quoted "$history")"
fi
if [ -n "${GROUP:-}" ]; then
    grant --operation Describe --group "$(quoted "$GROUP")"
    for topic in ${SOURCE_TOPICS:-}; do
        grant --operation Describe --topic "$(quoted "$topic")"
    done
fi
