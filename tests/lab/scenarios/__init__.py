"""The four failure scenarios, with real processes, real Spark and real PostgreSQL, at every crash point."""
