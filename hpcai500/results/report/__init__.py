"""`hpcai500 report`: records as one HTML page without scripts and external files.

`page` combines `sections` and `speed`, which return `blocks`; templates/ has their HTML, `drawing` makes the SVG.
"""
