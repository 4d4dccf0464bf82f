"""`hpcai500 accept`: whether a system meets its contract, with the evidence.

`contract` reads the contract, `evidence` the runs, `measured` has the number of each criterion, `verdict` the verdict
and its text, `page` the page to sign.
"""
