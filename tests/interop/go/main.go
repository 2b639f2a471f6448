// Programs of others for `make interop`: KEDA's scalers, and the processor of Go's SDK for Event Hubs.
//
//	interop keda                                        a trigger as JSON on standard input -> what KEDA learns, as JSON
//	interop consume HUBS HUB GROUP BLOBS CONTAINER      PARTITION NUMBER for each event, until standard input ends
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2/checkpoints"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/kedacore/keda/v2/pkg/scalers"
	"github.com/kedacore/keda/v2/pkg/scalers/scalersconfig"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == "keda":
		err = ask(os.Stdin, os.Stdout)
	case len(os.Args) == 7 && os.Args[1] == "consume":
		err = consume(os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6])
	default:
		err = errors.New("usage: interop keda | interop consume HUBS HUB GROUP BLOBS CONTAINER")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Trigger is one of a ScaledObject, with the variables of the pods.
type Trigger struct {
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata"`
	Env      map[string]string `json:"env"`
}

// Answer is the metric that the autoscaler gets, in thousandths, and whether KEDA starts the first pod.
type Answer struct {
	Milli    int64 `json:"milli"`
	IsActive bool  `json:"is_active"`
}

func ask(in io.Reader, out io.Writer) error {
	var trigger Trigger
	if err := json.NewDecoder(in).Decode(&trigger); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	scaler, err := scalerOf(ctx, trigger)
	if err != nil {
		return err
	}
	defer scaler.Close(ctx)
	metrics, isActive, err := scaler.GetMetricsAndActivity(ctx, "interop")
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(Answer{Milli: metrics[0].Value.MilliValue(), IsActive: isActive})
}

func scalerOf(ctx context.Context, trigger Trigger) (scalers.Scaler, error) {
	config := &scalersconfig.ScalerConfig{
		TriggerType:       trigger.Type,
		TriggerMetadata:   trigger.Metadata,
		ResolvedEnv:       trigger.Env,
		AuthParams:        map[string]string{},
		GlobalHTTPTimeout: 10 * time.Second,
	}
	switch trigger.Type {
	case "azure-eventhub":
		return scalers.NewAzureEventHubScaler(config)
	case "azure-cosmosdb":
		return scalers.NewAzureCosmosDBScaler(config)
	case "kafka":
		return scalers.NewKafkaScaler(ctx, config)
	case "postgresql":
		return scalers.NewPostgreSQLScaler(ctx, config)
	}
	return nil, fmt.Errorf("no scaler for %q", trigger.Type)
}

func consume(hubs, hub, group, blobs, name string) error {
	store, err := container.NewClientFromConnectionString(blobs, name, nil)
	if err != nil {
		return err
	}
	checkpointStore, err := checkpoints.NewBlobStore(store, nil)
	if err != nil {
		return err
	}
	client, err := azeventhubs.NewConsumerClientFromConnectionString(hubs, hub, group, nil)
	if err != nil {
		return err
	}
	defer client.Close(context.Background())
	processor, err := azeventhubs.NewProcessor(client, checkpointStore, &azeventhubs.ProcessorOptions{
		LoadBalancingStrategy:       azeventhubs.ProcessorStrategyGreedy,
		UpdateInterval:              time.Second,
		PartitionExpirationDuration: 5 * time.Second,
		StartPositions:              azeventhubs.StartPositions{Default: azeventhubs.StartPosition{Earliest: to.Ptr(true)}},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var readers sync.WaitGroup
	readers.Go(func() {
		for partition := processor.NextPartitionClient(ctx); partition != nil; partition = processor.NextPartitionClient(ctx) {
			readers.Go(func() { report(read(ctx, partition)) })
		}
	})
	err = processor.Run(ctx)
	readers.Wait()
	return err
}

func report(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
	}
}

// read writes the checkpoint of each event before it prints it.
func read(ctx context.Context, partition *azeventhubs.ProcessorPartitionClient) error {
	defer partition.Close(context.Background())
	for {
		events, err := partition.ReceiveEvents(ctx, 1, nil)
		if err != nil {
			return err
		}
		for _, event := range events {
			if err := partition.UpdateCheckpoint(context.Background(), event, nil); err != nil {
				return err
			}
			fmt.Println(partition.PartitionID(), event.SequenceNumber)
		}
	}
}
