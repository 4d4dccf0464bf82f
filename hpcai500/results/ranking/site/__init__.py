"""A ranking as static pages: readable without script, without network, by anybody."""
