"""How far each pipeline is behind its feed: measured by calls to the feed, or known from the readers of the group's hosts."""
