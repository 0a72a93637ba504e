import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/** Reads "hex-key partitions" lines, writes "murmur2 partition" lines, as Kafka's own producer computes them. */
public class PartitionForKey {
    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            int space = line.indexOf(' ');
            byte[] key = HexFormat.of().parseHex(line.substring(0, space));
            int partitions = Integer.parseInt(line.substring(space + 1));
            System.out.println(Utils.murmur2(key) + " " + BuiltInPartitioner.partitionForKey(key, partitions));
        }
    }
}
