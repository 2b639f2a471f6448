"""Servers for tests and local development that speak the protocols of Azure: Cosmos DB, Event Hubs and Blob Storage."""

if __name__ != "leasehold_emulators":  # in a checkout, another name would load its modules twice
    raise ImportError(f"{__name__} has another name: import leasehold_emulators", name=__name__)
