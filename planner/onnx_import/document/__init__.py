"""The file as a document: its bytes, opsets, functions, subgraphs, records and node order."""
