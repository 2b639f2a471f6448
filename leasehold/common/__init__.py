"""What `leases`, `pipeline` and `service` share, and what knows none of them."""
