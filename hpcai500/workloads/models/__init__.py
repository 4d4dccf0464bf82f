"""The benchmark models, implemented here so that no model zoo is needed."""
