"""An event hub as a sink."""
