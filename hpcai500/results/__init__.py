"""Everything that is computed from records: scores, reports, comparisons. One module for each command.

`score` computes a result from the events and `outcome` prints it. Packages: `report`, `submission` (pack and unpack),
`verification` (check a submission), `acceptance`, `ranking`, `replication`, `track` (a machine over months).
"""
