"""One package or module for each system, with its feed, its sink or both. Its vendor's SDK is imported only there."""
