"""Output formats: tables, JSON, YAML, names."""
