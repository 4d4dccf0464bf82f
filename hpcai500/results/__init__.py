"""What becomes of records: scores, and what people and harnesses are shown of them. A module a command.

`score` computes a result again and `outcome` prints it. In packages: `report`, `submission` (pack and open),
`verification` (what of one holds), `acceptance`, `ranking`, `replication`.
"""
