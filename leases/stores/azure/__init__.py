"""What the stores over Azure's SDKs share."""
