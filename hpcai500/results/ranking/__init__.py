"""`hpcai500 rank`: verified submissions in order, as a table, a document and a site.

`entries` reads the files, `ranking` orders them, `pages` shows them; `published` is the list of the project's page.
"""
