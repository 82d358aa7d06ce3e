"""The jobs behind `sterna pipeline`: archive, query, evaluate, operators, audit."""
