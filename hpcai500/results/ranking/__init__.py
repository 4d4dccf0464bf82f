"""`hpcai500 rank`: verified submissions in order, as a table, a document and a site.

`entries` reads the files, `ranking` orders them, `pages` writes the site; `published` is the ranking of the project's
page.
"""
