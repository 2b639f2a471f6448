"""One partition's way from pages to what is safe: read ahead, batches, delivery."""
