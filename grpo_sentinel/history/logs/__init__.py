"""Read other people's logs: text, JSON lines and state files of the trainers, as lines, rows and catalogue signals.

path, gz, directory, stdin -> lines.Line -> formats.Row (raw names) -> names.canonical (catalogue signals)
"""
