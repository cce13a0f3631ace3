"""Real text that needs no download, and the files of the user."""
