"""The command line, `ogc-plan`."""
