"""Servers of the systems that cannot be installed here, each its own process that speaks the real protocol."""
