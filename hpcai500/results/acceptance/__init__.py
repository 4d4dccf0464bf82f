"""`hpcai500 accept`: whether a system keeps what its contract says, with the evidence.

`contract` is the file, `evidence` the runs, `measured` the number of each criterion, `verdict` the judgement,
`page` the paper.
"""
