"""`hpcai500 report`: records as one page that can be read without network, script or the machine that made it."""
