#!/bin/sh
# Prints the kafka-acls.sh commands that give a principal the rights of a write, and no others. Read the commands, then run them:
#
#   PRINCIPAL=User:orders TOPICS=orders conf/acls-writer.sh | sh -e
#
# Set these variables, or keep their defaults. Separate several topics by spaces.
#   BOOTSTRAP_SERVERS   the value of KAFKA_EOS_BOOTSTRAP_SERVERS, else localhost:9092
#   COMMAND_CONFIG      client properties of an administrator, for --command-config; none
#   PRINCIPAL           User:orders
#   TOPICS              the topics with rows; orders
#   PREFIX              the option transactional.id.prefix, in which a / is written %2F; kafka-eos
#   COMMIT_LOG_TOPIC    the option commit.log.topic; __kafka_eos_commits
#   HISTORY_TOPIC       the option history.topic, empty for none; __kafka_eos_history
#   DEAD_LETTER_TOPIC   the option dead.letter.topic; none
#   GROUP               the option source.offsets.group; none
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
principal=${PRINCIPAL:-User:orders}
prefix=$(quoted "${PREFIX:-kafka-eos}")
log=$(quoted "${COMMIT_LOG_TOPIC:-__kafka_eos_commits}")
history=${HISTORY_TOPIC-__kafka_eos_history}

grant --operation Write --transactional-id "$prefix" --resource-pattern-type prefixed
for topic in ${TOPICS:-orders}; do
    grant --operation Write --operation Read --topic "$(quoted "$topic")"
done
grant --operation Write --operation Read --operation Create --operation DescribeConfigs --topic "$log"
grant --operation DescribeConfigs --cluster
if [ -n "$history" ]; then
    grant --operation Write --operation Read --operation Create --topic "$(quoted "$history")"
fi
if [ -n "${DEAD_LETTER_TOPIC:-}" ]; then
    grant --operation Write --operation Read --operation DescribeConfigs --topic "$(quoted "$DEAD_LETTER_TOPIC")"
fi
if [ -n "${GROUP:-}" ]; then
    grant --operation Read --group "$(quoted "$GROUP")"
    for topic in ${SOURCE_TOPICS:-}; do
        grant --operation Read --topic "$(quoted "$topic")"
    done
fi
