import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Joins a share group (KIP-932), and prints offset and value of every record that it gets. */
public class ShareReader {
    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "group.id", arguments[1]);
        try (var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[2]));
            while (true) {
                var records = consumer.poll(Duration.ofSeconds(1));
                records.forEach(record -> System.out.println(record.offset() + " " + record.value()));
            }
        }
    }
}
