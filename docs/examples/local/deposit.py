import os
import uuid

from azure.cosmos import CosmosClient

client = CosmosClient.from_connection_string(os.environ["BANK_COSMOS"])
transactions = client.get_database_client("bank").get_container_client("transactions")
for account, amount in [("alice", 10), ("bob", 20), ("alice", 2.5), ("carol", 7)]:
    transactions.create_item({"id": str(uuid.uuid4()), "account": account, "amount": amount})
