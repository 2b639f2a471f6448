"""NATS JetStream: subjects of a stream as a feed and as a sink."""
