"""Programs for type checkers, which `make check` and tests/integration/test_pyright.py run over them."""
