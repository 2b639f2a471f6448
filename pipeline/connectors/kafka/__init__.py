"""Apache Kafka, and services that speak its protocol: as a feed and as a sink."""
