import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/** Rejects topics as managed clusters do; the beginning of a topic's name chooses which one. */
public class TopicPolicy implements CreateTopicPolicy {
    private static final Set<String> SERVERLESS = Set.of("cleanup.policy", "max.message.bytes", "retention.ms");

    @Override
    public void validate(RequestMetadata topic) {
        Map<String, String> configs = topic.configs();
        if (topic.topic().startsWith("confluent-")
                && Long.parseLong(configs.getOrDefault("segment.bytes", "52428800")) < 52428800) {
            throw new PolicyViolationException("segment.bytes must be at least 52428800");
        }
        if (topic.topic().startsWith("serverless-") && !SERVERLESS.containsAll(configs.keySet())) {
            throw new PolicyViolationException("only these may be set: " + SERVERLESS);
        }
        if (topic.topic().startsWith("closed-")) {
            throw new PolicyViolationException("ask the platform team");
        }
    }

    @Override
    public void configure(Map<String, ?> configs) {}

    @Override
    public void close() {}
}
