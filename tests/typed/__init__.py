"""Programs for type checkers, which `make check` and tests/unit/test_leasehold.py run over them."""
