"""One module per figure: `TITLE`, and `measure(bench)`, which returns the rows of the table."""
