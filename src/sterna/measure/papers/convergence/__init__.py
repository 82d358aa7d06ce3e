"""How long a spanning tree takes to form and to form again."""
