"""What commands print on a model, on devices and on sizes that fit."""
