"""Build, store and load a linear graph neural network."""
