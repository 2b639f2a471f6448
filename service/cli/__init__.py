"""The command `leasehold`: a module for each group of commands, and what they share."""
