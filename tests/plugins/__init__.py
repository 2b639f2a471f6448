"""Parts for Leasehold that live outside of it, as a third party would write them (docs/plugins.md)."""
