"""Handlers that are called for many keys side by side, and for each key in order."""

FUNCTION_OF = "leasehold_function"
"""The attribute of an object that stands for a handler, with the function itself: of what `@leasehold.handler` returns."""
