"""AMQP as Event Hubs speaks it: connections, links, frames, and messages decoded and encoded."""
