"""Handlers: what they are called with, side by side or one batch at a time."""
