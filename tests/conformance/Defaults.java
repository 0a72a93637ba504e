import java.util.TreeMap;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;

/** Prints each option of the Java producer that has a default, and this default as text: name, tab, default. */
public class Defaults {
    public static void main(String[] arguments) {
        new TreeMap<>(ProducerConfig.configDef().configKeys()).forEach((name, key) -> {
            if (key.hasDefault()) {
                String text = ConfigDef.convertToString(key.defaultValue, key.type);
                System.out.println(name + "\t" + (text == null ? "" : text));
            }
        });
    }
}
