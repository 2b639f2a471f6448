"""How far each pipeline is behind its feed: measured by a call of the feed, or known by the group."""
