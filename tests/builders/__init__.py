"""What tests are given: records, campaigns, submissions and ensembles that nobody ran, and tiny runs that are."""
