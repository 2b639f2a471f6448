"""Questions to Cosmos DB, Event Hubs and Blob Storage: whether they behave as docs/guarantees.md assumes.

`report` asks them one by one and writes down the answers; `cosmos`, `eventhubs` and `blob` have the questions.
"""
