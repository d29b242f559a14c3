"""What processes without a model answer from: written by the unlearner, mapped by readers."""
