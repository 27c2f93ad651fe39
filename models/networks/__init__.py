"""The networks of the zoo in plain torch, one family a file, each with the published shapes and parameter count."""
