"""`python -m leasehold` is the command `leasehold`."""

from leasehold.service.__main__ import main

if __name__ == "__main__":
    main()
