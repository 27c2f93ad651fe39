"""The forward of each op in the opset of the step."""
