"""Cases of users' pipelines: `leasehold test`, and the pytest plug-in.

`model`: what a file of cases contains. `running`: a case through its pipeline's transform, into memory. `killing`: the same
pipeline in hosts that die. `compare`: what was expected, next to what came out. docs/testing.md describes cases for users.
"""
