"""Files, as a feed and as a sink."""
