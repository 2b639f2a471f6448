pytest_plugins = ["tests.plugins_pg"]
