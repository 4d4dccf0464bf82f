"""What stands in tests for what cannot be here: a driver, a scheduler, meters, machines."""
