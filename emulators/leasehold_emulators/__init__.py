"""Servers for tests and local development that speak the protocols of Azure: Cosmos DB, Event Hubs and Blob Storage."""
