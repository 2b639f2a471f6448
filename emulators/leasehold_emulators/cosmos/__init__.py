"""A wire server of a Cosmos DB account, in memory or also on disk: the SDKs' gateway protocol, range splits, faults to order."""
