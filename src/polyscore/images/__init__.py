"""Class-conditional image models: U-Nets trained on mixtures of classes, counted by a classifier."""
