"""Questions to Cosmos DB and Event Hubs: whether they behave as docs/guarantees.md assumes.

`report` asks them one by one and writes down the answers; `cosmos` and `eventhubs` have the questions.
"""
