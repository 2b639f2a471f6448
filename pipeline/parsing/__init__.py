"""JSON bodies into columns, by a schema, before Spark sees them."""
