"""`hpcai500 rank`: verified submissions in order, as a table, a document and a site."""
