"""One partition's way from pages to safe output: read-ahead, batches, delivery."""
