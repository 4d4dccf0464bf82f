"""Starts the in-job half: by token lists, never by shell strings, and without importing what is started."""
