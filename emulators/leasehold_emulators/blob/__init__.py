"""A wire server of Azure Blob Storage: containers, block and append blobs, leases, conditions, shared keys and SAS."""
