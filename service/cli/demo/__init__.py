"""`leasehold demo`: a bank, end to end on one machine."""
