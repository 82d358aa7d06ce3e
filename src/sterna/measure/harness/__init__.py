"""Starting and stopping what is measured, at what places, and reading what it used."""
