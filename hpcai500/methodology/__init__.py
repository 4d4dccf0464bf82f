"""The papers' method as pure functions: numbers in, numbers out. No disk, no clock, no network."""
