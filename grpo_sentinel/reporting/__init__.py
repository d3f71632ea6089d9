"""The report of a whole run, read from the history: gathered once, then written as Markdown or as one HTML file."""
