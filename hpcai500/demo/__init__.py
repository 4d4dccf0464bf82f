"""`hpcai500 demo`: records of real, tiny runs, and all pages that the other commands make of them, without training."""
