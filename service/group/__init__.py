"""The group of hosts: what its lease container shows, and what operators change in it."""
