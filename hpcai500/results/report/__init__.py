"""`hpcai500 report`: records as one page that can be read without network, script or the machine that made it.

`page` puts it together of `sections` and `speed`, which give `blocks`; templates/ says how each looks, `drawing`
makes the SVG.
"""
