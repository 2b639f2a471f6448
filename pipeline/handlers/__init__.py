"""Handlers: what they are called with, and how: side by side, or one batch at a time."""
