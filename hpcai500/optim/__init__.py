"""Learning-rate policies and update rules (layer 8)."""
