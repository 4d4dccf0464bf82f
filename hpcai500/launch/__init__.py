"""Starting the in-job half: token lists, never shell strings, and never an import of what they start."""
