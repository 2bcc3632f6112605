"""Data as people have it: tables with a column that names each row's condition."""
