"""`hpcai500 report`: records as one page that needs no network, no script and no machine but the reader's."""
