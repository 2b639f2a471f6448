"""Import of leases: other processors' formats, our own export, and the plan of an import."""
