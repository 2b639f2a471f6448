import com.azure.messaging.eventhubs.EventProcessorClient;
import com.azure.messaging.eventhubs.EventProcessorClientBuilder;
import com.azure.messaging.eventhubs.LoadBalancingStrategy;
import com.azure.messaging.eventhubs.checkpointstore.blob.BlobCheckpointStore;
import com.azure.messaging.eventhubs.models.EventPosition;
import com.azure.storage.blob.BlobContainerAsyncClient;
import com.azure.storage.blob.BlobContainerClientBuilder;
import com.azure.storage.blob.BlobServiceVersion;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * EventProcessorClient over a BlobCheckpointStore: `PARTITION NUMBER` for each event, whose checkpoint it has then written.
 * Standard input ends it.
 *
 * <pre>java Consumer HUBS HUB GROUP BLOBS CONTAINER</pre>
 */
public final class Consumer {
    public static void main(String[] given) throws Exception {
        BlobContainerAsyncClient blobs = new BlobContainerClientBuilder()
            .connectionString(given[3]).containerName(given[4]).serviceVersion(BlobServiceVersion.V2021_12_02).buildAsyncClient();
        Map<String, EventPosition> starts = new ConcurrentHashMap<>();
        for (int partition = 0; partition < 32; partition++) {
            starts.put(Integer.toString(partition), EventPosition.earliest());
        }
        EventProcessorClient client = new EventProcessorClientBuilder()
            .connectionString(given[0], given[1])
            .consumerGroup(given[2])
            .checkpointStore(new BlobCheckpointStore(blobs))
            .initialPartitionEventPosition(starts)
            .loadBalancingStrategy(LoadBalancingStrategy.GREEDY)
            .loadBalancingUpdateInterval(Duration.ofSeconds(1))
            .partitionOwnershipExpirationInterval(Duration.ofSeconds(5))
            .processEvent(event -> {
                event.updateCheckpoint();
                System.out.println(event.getPartitionContext().getPartitionId() + " " + event.getEventData().getSequenceNumber());
            })
            .processError(error -> System.err.println(error.getPartitionContext().getPartitionId() + ": " + error.getThrowable()))
            .buildEventProcessorClient();
        client.start();
        while (System.in.read() >= 0) {
        }
        client.stop();
        System.exit(0);
    }
}
