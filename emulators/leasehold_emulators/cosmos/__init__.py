"""A Cosmos DB account on the wire, in memory: what the SDKs' gateway mode speaks, with ranges that split and faults to order."""
