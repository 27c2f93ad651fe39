"""The generated parts of the pages."""
