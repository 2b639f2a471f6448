import java.nio.charset.StandardCharsets;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;

/**
 * `PARTITION BODY` for each message of a topic, in the order of its partition.
 *
 * <pre>java TopicReader.java URL TOPIC</pre>
 */
public final class TopicReader {
    public static void main(String[] given) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(given[0]).build()) {
            for (String partition : client.getPartitionsForTopic(given[1]).get()) {
                String number = partition.substring(partition.lastIndexOf('-') + 1);
                try (Reader<byte[]> reader = client.newReader().topic(partition).startMessageId(MessageId.earliest).create()) {
                    while (reader.hasMessageAvailable()) {
                        System.out.println(number + " " + new String(reader.readNext().getValue(), StandardCharsets.UTF_8));
                    }
                }
            }
        }
    }
}
