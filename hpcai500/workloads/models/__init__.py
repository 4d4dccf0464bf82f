"""The benchmark models, written here: no model zoo is needed on a site."""
