"""Which events of a batch cannot be processed, found by running parts of it again."""
