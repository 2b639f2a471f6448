"""Leases from elsewhere: what other processors keep, our own export, and the plan of an import."""
