"""What `leases`, `pipeline` and `service` share. It imports none of them."""
