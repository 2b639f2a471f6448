"""One room per system, with its feed, its sink or both; the only place for its vendor SDK."""
