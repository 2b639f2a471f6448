"""An event hub as a feed."""
