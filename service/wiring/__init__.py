"""Builds a processor and its parts from the settings."""
