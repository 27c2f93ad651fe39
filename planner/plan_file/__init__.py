"""The plan file: its record, schema, reader and writer."""
