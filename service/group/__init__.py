"""The group of hosts: what its lease store shows, and what operators change in it."""
