"""The settings: one YAML file, read strictly, as frozen values."""
