"""A linear graph neural network: how it is built, kept on disk and loaded."""
