import java.io.File;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.DefaultRecordBatch;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;

/**
 * read FILE...: prints what Kafka's own reader finds in each file of batches, one line per batch and record.
 * write FOLDER: writes a file of batches per codec, each with a control batch and an emptied batch after it.
 */
public class RecordBatches {
    static final HexFormat HEX = HexFormat.of();

    public static void main(String[] args) throws Exception {
        if (args[0].equals("read")) {
            for (int i = 1; i < args.length; i++) read(args[i]);
        } else {
            for (CompressionType type : CompressionType.values()) write(type, Path.of(args[1], type.name));
        }
    }

    static void read(String file) throws Exception {
        ByteBuffer buffer = ByteBuffer.wrap(Files.readAllBytes(Path.of(file)));
        for (RecordBatch batch : MemoryRecords.readableRecords(buffer).batches()) {
            batch.ensureValid();
            System.out.printf("batch %s %s %d %d %d %d %d %d %b %b%n", new File(file).getName(), batch.compressionType().name,
                batch.baseOffset(), batch.lastOffset(), batch.producerId(), batch.producerEpoch(), batch.baseSequence(),
                batch.maxTimestamp(), batch.isTransactional(), batch.isControlBatch());
            for (Record record : batch) {
                record.ensureValid();
                StringBuilder line = new StringBuilder("record " + record.offset() + " " + record.timestamp() + " "
                    + record.sequence() + " " + hex(record.key()) + " " + hex(record.value()));
                for (Header header : record.headers())
                    line.append(" ").append(HEX.formatHex(header.key().getBytes(StandardCharsets.UTF_8))).append("=")
                        .append(header.value() == null ? "null" : HEX.formatHex(header.value()));
                System.out.println(line);
            }
        }
    }

    static String hex(ByteBuffer content) {
        if (content == null) return "null";
        byte[] bytes = new byte[content.remaining()];
        content.get(bytes);
        return "x" + HEX.formatHex(bytes);
    }

    static void write(CompressionType type, Path file) throws Exception {
        ByteBuffer all = ByteBuffer.allocate(1 << 21);
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 20), RecordBatch.MAGIC_VALUE_V2,
            Compression.of(type).build(), TimestampType.CREATE_TIME, 1000L, -1L, 4711L, (short) 3, 17, true, 8);
        builder.append(1700000000000L, "key".getBytes(), "value".getBytes(),
            new Header[] {new RecordHeader("h", new byte[] {1, 2}), new RecordHeader("n", null)});
        builder.append(1700000000500L, (byte[]) null, new byte[0], new Header[0]);
        builder.append(1699999999000L, new byte[0], (byte[]) null, new Header[0]);
        for (int i = 0; i < 200; i++)
            builder.append(1700000000000L + i, ("k" + i).getBytes(), ("flight ".repeat(100) + i).getBytes(), new Header[0]);
        all.put(builder.build().buffer());
        all.put(MemoryRecords.withEndTransactionMarker(1203L, 1700000001000L, 8, 4711L, (short) 4,
            new EndTransactionMarker(ControlRecordType.COMMIT, 21)).buffer());
        all.put(MemoryRecords.withEndTransactionMarker(1204L, 1700000001001L, 8, 4712L, (short) 0,
            new EndTransactionMarker(ControlRecordType.ABORT, 22)).buffer());
        DefaultRecordBatch.writeEmptyHeader(all, RecordBatch.MAGIC_VALUE_V2, 4713L, (short) 2, 5, 1205L, 1207L, 8,
            TimestampType.CREATE_TIME, 1700000002000L, true, true);
        all.flip();
        byte[] bytes = new byte[all.remaining()];
        all.get(bytes);
        Files.write(file, bytes);
    }
}
