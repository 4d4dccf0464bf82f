"""`hpcai500 demo`: records of real, small runs, and the pages that other commands make of them, without training."""
