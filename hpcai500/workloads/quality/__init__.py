"""Quality metrics (layer 9)."""
