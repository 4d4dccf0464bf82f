"""`hpcai500 accept`: whether a system keeps what its contract says, with the evidence."""
