"""Programs for type checkers, which `make check` and tests/connectors/test_pyright.py run over them."""
