"""The file as a document: its bytes, functions, subgraphs, node order and inputs."""
