"""Small parts that the host and its workers are made of."""
