"""What a training step will cost on ranks that are not there yet (docs/cost-model.md)."""
