"""A wire server of an Event Hubs namespace: AMQP 1.0 with its own codec, hubs in memory or also on disk, and faults to order."""
