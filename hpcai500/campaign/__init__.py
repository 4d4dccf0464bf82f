"""Campaigns: several runs of one recipe, planned before the first of them, so that none can be left out unseen."""
