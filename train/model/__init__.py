"""The models of model-format.md as PyTorch modules."""
