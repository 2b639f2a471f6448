pytest_plugins = ["tests.plugins_pg", "tests.plugins_bank", "tests.plugins_cli", "tests.plugins_hosts"]
