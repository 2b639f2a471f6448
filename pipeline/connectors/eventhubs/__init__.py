"""Event Hubs: its partitions as a feed and as a sink, and a broker for idempotent producers."""
