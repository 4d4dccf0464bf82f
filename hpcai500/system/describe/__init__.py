"""What a node is: each file looks at one part of it, parsers take text and folders, and `node` puts all together."""
