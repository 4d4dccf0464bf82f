"""`hpcai500 track`: the records of one machine over months: what got worse, since when, and what else changed then.

`folder` reads the records, `trends` compares them and gives the verdict, `outputs` writes the page, the file for
Prometheus and the dashboard. The mathematics is in `methodology.changes`.
"""
