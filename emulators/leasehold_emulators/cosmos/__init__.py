"""A wire server of a Cosmos DB account, held in memory: the SDKs' gateway protocol, ranges that split, and faults to order."""
