"""An Event Hubs namespace on the wire: AMQP 1.0 by a codec of its own, hubs in memory, faults to order."""
