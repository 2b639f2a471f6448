"""Apache Pulsar: the partitions of a topic as a feed and as a sink."""
