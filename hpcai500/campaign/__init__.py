"""Campaigns: several runs of one recipe, fixed before the first of them, of which none can be left out quietly."""
